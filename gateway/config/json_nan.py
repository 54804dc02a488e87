"""The forms that NaN and infinities have in JSON, which has no numbers for them."""

import enum


class JsonNan(enum.StrEnum):
    """The literals NaN, Infinity and -Infinity, as in Triton's answers; the same in quotes; or null for each."""

    LITERAL = "literal"
    STRING = "string"
    NULL = "null"
