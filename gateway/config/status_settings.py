"""Which statuses clients get for what is refused for load, where Triton's is not what they expect."""

from typing import Literal

import msgspec


class StatusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """HTTP statuses: of requests for which there is no time or room (`overload`), and of those given up (`expired`).

    gRPC has the status that belongs to each: UNAVAILABLE (503), RESOURCE_EXHAUSTED (429), DEADLINE_EXCEEDED (504).
    """

    overload: Literal[503, 429] = 503
    expired: Literal[503, 504] = 503


TRITON_STATUSES = StatusSettings()
"""Those that Triton has."""
