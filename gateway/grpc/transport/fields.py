"""Checks a large message before it is parsed: a message of many small parts takes many times its size in memory."""

from sluice.models.errors import RequestError

MAX_FIELDS = 10_000
LARGE_BYTES = 4 << 20
"""Smaller messages are not checked."""

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5


def check_fields(body: bytes, bulk: int = 0, limit: int = LARGE_BYTES) -> None:
    """Check the number of fields at the top of a message, and their bytes beside the field of number `bulk`.

    Without `bulk` their bytes have no bound. A message that is malformed passes, since the parser finds that out.
    Raises RequestError.
    """
    if len(body) <= min(limit, LARGE_BYTES):
        return
    position = rest = 0
    for _ in range(MAX_FIELDS):
        if position >= len(body):
            return
        begin = position
        key, position = _varint(body, position)
        kind = key & 7
        if kind == _LENGTH:
            size, position = _varint(body, position)
            position += size
        elif kind == _VARINT:
            _, position = _varint(body, position)
        elif kind in (_EIGHT, _FOUR):
            position += 8 if kind == _EIGHT else 4
        else:
            return
        if bulk and key >> 3 != bulk:
            rest += position - begin
            if rest > limit:
                raise RequestError(
                    f"the message exceeds {limit} bytes without its raw contents; large tensors are sent as such"
                )
    raise RequestError(f"the message has more than {MAX_FIELDS} fields")


def _varint(body: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it; beyond the end there are zeros."""
    value = shift = 0
    while position < len(body) and shift < 64:
        byte = body[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, position
