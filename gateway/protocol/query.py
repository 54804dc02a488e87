"""Query strings of the routes that are Sluice's own; those of V2 and Triton ignore parameters that they do not know."""

from collections.abc import Iterable, Sequence

from sluice.models.errors import RequestError
from sluice.models.spelling import did_you_mean


def check_query(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise RequestError for the name of a parameter that is not `known`."""
    for name in given:
        if name not in known:
            expected = ", ".join(known) if known else "no parameters"
            hint = did_you_mean(name, known)
            raise RequestError(f"query parameter '{name:.80}' is unknown; expected {expected}{hint}")
