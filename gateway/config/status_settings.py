"""The HTTP statuses of requests that are refused under load, for clients that do not expect Triton's."""

from typing import Literal

import msgspec


class StatusSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The statuses for `overload` (no time or no room for a request) and for `expired` (it timed out in a queue).

    gRPC uses the matching status: UNAVAILABLE (503), RESOURCE_EXHAUSTED (429), DEADLINE_EXCEEDED (504).
    """

    overload: Literal[503, 429] = 503
    expired: Literal[503, 504] = 503


TRITON_STATUSES = StatusSettings()
"""The statuses that Triton uses."""
