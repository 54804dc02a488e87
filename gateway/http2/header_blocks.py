"""Header blocks (RFC 7541): decoded once while the dynamic table is unchanged, and checked by RFC 9113, section 8."""

import re
from collections.abc import Callable, Iterable
from typing import Generic, TypeAlias, TypeVar

import hpack

from sluice.gateway.http2.frames import ConnectionFault, ErrorCode, StreamFault
from sluice.gateway.http2.watched_table import WatchedTable

Fields: TypeAlias = list[tuple[bytes, bytes]]
"""Names and values of a header block, in their order."""

T = TypeVar("T")

KNOWN_BLOCKS = 32
KNOWN_BLOCK_BYTES = 1024
"""Larger blocks are not remembered."""
MAX_TABLE_UPDATES = 2
"""Changes of the table's size at the beginning of a block (RFC 7541, section 4.2)."""
FIELD_BYTES = 32
"""The bytes that a field counts beside its name and value (RFC 7541, section 4.1)."""

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|^[ \t]|[ \t]$")
_REQUEST_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_CONNECTION_FIELDS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_TABLE_UPDATE, _TABLE_UPDATE_MASK = 0x20, 0xE0


class HeaderDecoder(Generic[T]):
    """Decodes the header blocks of a connection. What `interpret` makes of the fields of a request is remembered.

    A block of the same bytes has the same fields as long as the dynamic table is the same. Blocks that change the table
    are not remembered, and all others are forgotten then. A header list has at most `max_list_bytes` and `max_fields`.
    A list of up to twice as many bytes is decoded, so that only its stream fails.
    """

    def __init__(self, max_list_bytes: int, max_fields: int, interpret: Callable[[Fields], T]) -> None:
        self._interpret = interpret
        self._max_fields = max_fields
        self._max_list_bytes = max_list_bytes
        self._decoder = hpack.Decoder(2 * max_list_bytes)
        self._table = WatchedTable()
        self._decoder.header_table = self._table
        self._known: dict[bytes, T] = {}

    def request(self, block: bytes) -> T:
        """The meaning of the header block of a request. Raises ConnectionFault and StreamFault."""
        known = self._known.get(block)
        if known is not None:
            return known
        fields, same_table = self._decode(block)
        self._check_size(fields)
        check_request(fields)
        meaning = self._interpret(fields)
        if same_table and len(block) <= KNOWN_BLOCK_BYTES:
            if len(self._known) >= KNOWN_BLOCKS:
                self._known.clear()
            self._known[block] = meaning
        return meaning

    def trailers(self, block: bytes) -> None:
        """Decode the block of trailers, which are checked and dropped. Raises ConnectionFault and StreamFault."""
        fields, _ = self._decode(block)
        self._check_size(fields)
        for name, value in fields:
            if name.startswith(b":"):
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "expected no pseudo-header fields in trailers")
            check_field(name, value)

    def fields(self, block: bytes) -> Fields:
        """The fields of the header block of an answer, or of its trailers. Raises ConnectionFault and StreamFault."""
        fields, _ = self._decode(block)
        self._check_size(fields)
        return fields

    def _decode(self, block: bytes) -> tuple[Fields, bool]:
        """The fields of a block, and whether the dynamic table is the same as before."""
        resized = bool(block) and block[0] & _TABLE_UPDATE_MASK == _TABLE_UPDATE
        if resized:
            _check_updates(block)
        changes = self._table.changes
        try:
            fields: Fields = [(name, value) for name, value in self._decoder.decode(block, raw=True)]
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"the header list exceeds {2 * self._max_list_bytes} bytes"
            ) from error
        except (hpack.HPACKError, IndexError) as error:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded; expected RFC 7541"
            ) from error
        same_table = not resized and self._table.changes == changes
        if not same_table:
            self._known.clear()
        return fields, same_table

    def _check_size(self, fields: Fields) -> None:
        size = sum(len(name) + len(value) + FIELD_BYTES for name, value in fields)
        if len(fields) > self._max_fields:
            raise StreamFault(
                ErrorCode.ENHANCE_YOUR_CALM, f"expected at most {self._max_fields} header fields, got {len(fields)}"
            )
        if size > self._max_list_bytes:
            raise StreamFault(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"expected a header list of at most {self._max_list_bytes} bytes, got {size}",
            )


def _check_updates(block: bytes) -> None:
    """Raise ConnectionFault for more changes of the table's size than any encoder needs."""
    position = updates = 0
    while position < len(block) and block[position] & _TABLE_UPDATE_MASK == _TABLE_UPDATE:
        updates += 1
        if updates > MAX_TABLE_UPDATES:
            raise ConnectionFault(
                ErrorCode.COMPRESSION_ERROR,
                f"a header block has more than {MAX_TABLE_UPDATES} changes of the table's size",
            )
        more = block[position] & 0x1F == 0x1F
        position += 1
        while more and position < len(block):
            more = block[position] >= 0x80
            position += 1


def check_field(name: bytes, value: bytes) -> None:
    """Check a field that is not a pseudo-header field. Raises StreamFault."""
    if _NAME.fullmatch(name) is None:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected a field name in lower case, got {name[:80]!r}")
    if _BAD_VALUE.search(value) is not None:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the value of field {name[:80]!r} has forbidden characters")
    if name in _CONNECTION_FIELDS or (name == b"te" and value != b"trailers"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected no connection-specific field, got {name!r}")


def check_request(fields: Fields) -> None:
    """Check the fields of a request. Raises StreamFault."""
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value in fields:
        if not name.startswith(b":"):
            regular = True
            check_field(name, value)
            continue
        if regular:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "expected pseudo-header fields before all others")
        if name not in _REQUEST_PSEUDO or name in pseudo:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected known pseudo-header fields once, got {name[:80]!r}")
        if _BAD_VALUE.search(value) is not None:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"the value of field {name!r} has forbidden characters")
        pseudo[name] = value
    if pseudo.get(b":method") == b"CONNECT":
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "expected another method than CONNECT")
    for name in (b":method", b":scheme", b":path"):
        if not pseudo.get(name):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"expected the pseudo-header field {name!r}, got none")


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A header block that neither uses nor changes the dynamic table."""
    return b"".join([part for name, value in fields for part in (literal_name(name), encode_string(value))])


def literal_name(name: bytes) -> bytes:
    """The beginning of a field that is not indexed: its name."""
    return b"\x00" + encode_string(name)


def encode_string(text: bytes) -> bytes:
    """A string literal without Huffman coding."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    encoded = bytearray((0x7F,))
    size -= 0x7F
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded) + text
