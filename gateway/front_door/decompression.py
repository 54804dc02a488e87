"""Decompression with a bound on its result. It is too slow for the event loop."""

import zlib

from sluice.gateway.front_door.budget import Budget
from sluice.models.errors import RequestError
from sluice.models.tensors.arrays import Buffer

_STEP = 64 << 10
_EITHER_FORMAT = 32 + zlib.MAX_WBITS
"""gzip or deflate."""


class DecompressedTooLarge(RequestError):
    """The decompressed data exceeds its limit."""


def decompress(body: Buffer, max_bytes: int, budget: Budget | None = None, what: str = "body") -> bytes | bytearray:
    """Decode a body or another thing named `what`; takes at most `max_bytes` of memory.

    The memory counts in the budget until the function returns. Raises RequestError, DecompressedTooLarge, and
    RejectedError when the budget has no room.
    """
    stream = zlib.decompressobj(_EITHER_FORMAT)
    decoded = bytearray()
    taken = 0
    try:
        for begin in range(0, len(body), _STEP):
            if stream.eof:
                raise RequestError(f"the {what} cannot be decompressed: there is data after its end")
            rest = bytes(body[begin : begin + _STEP])
            while rest and not stream.eof:  # after the end, the tail stays as it was
                if budget is not None and len(decoded) + _STEP > taken:
                    budget.grow(_STEP)
                    taken += _STEP
                decoded += stream.decompress(rest, min(_STEP, max_bytes + 1 - len(decoded)))
                if len(decoded) > max_bytes:
                    raise DecompressedTooLarge(f"the decompressed {what} exceeds the limit of {max_bytes} bytes")
                rest = stream.unconsumed_tail
        if not stream.eof:
            raise RequestError(f"the {what} cannot be decompressed: it is truncated")
        if stream.unused_data:
            raise RequestError(f"the {what} cannot be decompressed: there is data after its end")
        return decoded
    except Exception as error:
        decoded.clear()  # the error has this frame, so who keeps the one would keep the other
        if isinstance(error, zlib.error):
            raise RequestError(f"the {what} cannot be decompressed: {error}") from error
        raise
    finally:
        if budget is not None:
            budget.shrink(taken)
