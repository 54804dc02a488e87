"""Rules for the JSON of requests and answers."""

import enum
from typing import NamedTuple

from sluice.gateway.config.front_door import FrontDoorSettings


class JsonNan(enum.StrEnum):
    """The forms of NaN and infinities in JSON, which has no numbers for them.

    These are the literals NaN, Infinity and -Infinity, as in Triton's answers; the same in quotes; or null for each.
    """

    LITERAL = "literal"
    STRING = "string"
    NULL = "null"


class JsonRules(NamedTuple):
    """The most bytes of JSON in a request and in an answer, and the form of NaN and infinities there."""

    request_bytes: int = FrontDoorSettings().json_bytes
    answer_bytes: int = FrontDoorSettings().answer_json_bytes
    nan: JsonNan = JsonNan.LITERAL
