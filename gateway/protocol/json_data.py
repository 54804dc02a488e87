"""The `data` of tensors in JSON: lists to arrays and back."""

import functools
import itertools
import json
import re
import struct
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import orjson

from sluice.gateway.config.json_rules import JsonNan
from sluice.gateway.protocol.answer import Tensor
from sluice.models.errors import BadTensor, RequestError
from sluice.models.tensors.arrays import Array, Buffer, WireBytes, decode_bytes, numpy_dtype
from sluice.models.tensors.spec import RAW_ONLY, DataType, element_count

MAX_DEPTH = 100
"""Deepest nesting of lists in `data`; numpy itself stops at 64 dimensions."""
PIECE = 1 << 14
"""Elements that are encoded at a time, which takes about a millisecond: other threads run in between."""

T = TypeVar("T")

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OPENING = re.compile(rb"[\s\[]*")
_BRACKET, _NUMBER = ord("["), b"-0123456789"
_ELEMENTS: dict[str, Any] = {
    DataType.BOOL: bool,
    DataType.UINT8: Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)],
    DataType.UINT16: Annotated[int, msgspec.Meta(ge=0, le=2**16 - 1)],
    DataType.UINT32: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)],
    DataType.UINT64: Annotated[int, msgspec.Meta(ge=0)],
    DataType.INT8: Annotated[int, msgspec.Meta(ge=-(2**7), le=2**7 - 1)],
    DataType.INT16: Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)],
    DataType.INT32: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)],
    DataType.INT64: int,
    DataType.FP32: float,
    DataType.FP64: float,
    DataType.BYTES: str,
}
_DTYPES: dict[str, np.dtype[np.generic]] = {datatype: numpy_dtype(DataType(datatype)) for datatype in _ELEMENTS}


def parse_message(text: Buffer, decode: Callable[[Buffer], T], lenient: type[T], what: str) -> T:
    """Parse JSON with `decode`, or, if it has the literals NaN, Infinity or -Infinity, as a `lenient` structure.

    Clients send these literals although JSON has none. Raises RequestError, which says `what` the text should be.
    """
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise RequestError(f"the body is not {what}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = bytes(text)
        if b"NaN" not in text and b"Infinity" not in text:
            raise RequestError(f"the body is not {what} in JSON: {error}") from error
    try:
        document = json.loads(text)
        check_text(text, document)
        return msgspec.convert(document, lenient)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not {what} in JSON: {error}") from error


def check_text(text: Buffer, document: object) -> None:
    """Raise ValueError if a document in JSON has half a surrogate pair, which no text may have."""
    if _SURROGATE.search(text):
        json.dumps(document, ensure_ascii=False).encode()


def decode_data(tensor: str, datatype: str, data: object) -> Array | list[str]:
    """The `data` of an input, flat or nested, as a flat array, or as a flat list of strings for BYTES.

    `data` is a `msgspec.Raw` of the JSON text, or the result of the standard library's parser. Raises BadTensor.
    """
    if datatype not in _ELEMENTS:
        problem = (
            "cannot be given as JSON data; send it as binary data" if datatype in RAW_ONLY else "is not a datatype"
        )
        raise BadTensor(f"input '{tensor}': {datatype} {problem}; JSON data is one of {', '.join(_ELEMENTS)}")
    try:
        depth = _depth(data)
        if not 1 <= depth <= MAX_DEPTH:
            raise BadTensor(f"input '{tensor}': data must be a list of at most {MAX_DEPTH} levels, got {depth}")
        if isinstance(data, msgspec.Raw):
            values = _decoder(datatype, depth).decode(data)
        else:
            values = msgspec.convert(data, _list_type(_ELEMENTS[datatype], depth))
        for _ in range(depth - 1):
            values = values[0] if len(values) == 1 else list(itertools.chain.from_iterable(values))
        if datatype == "FP32":
            # Faster than numpy, which would also turn numbers that are too large into infinities.
            return np.frombuffer(_floats(len(values)).pack(*values), np.float32)
        return values if datatype == "BYTES" else np.array(values, _DTYPES[datatype])
    except msgspec.DecodeError as error:
        raise BadTensor(f"input '{tensor}' has datatype {datatype}, but its data does not fit: {error}") from error
    except OverflowError as error:
        raise BadTensor(f"input '{tensor}' has a value in its data that is out of range of {datatype}") from error


class DataTooLarge(Exception):
    """The JSON text of an output is larger than it may be."""


def encode_data(tensor: str, values: Tensor, most_bytes: int, nan: JsonNan = JsonNan.LITERAL) -> bytes:
    """The JSON text of an output's elements as one flat list; `nan` is for NaN and infinities.

    Raises BadTensor, and DataTooLarge for more than `most_bytes`: as soon as that is known, so that the work has a
    bound.
    """
    elements: Sequence[bytes] | Array
    if isinstance(values, WireBytes):
        count = element_count(values.shape)
        if values.nbytes - 4 * count + 3 * count > most_bytes:  # lengths become quotes and commas
            raise DataTooLarge
        begin, end = int(values.row_offsets[0]), int(values.row_offsets[-1])
        elements = decode_bytes(memoryview(values.buffer)[begin:end], values.shape).ravel().tolist()
    else:
        count = values.size
        if 2 * count > most_bytes:
            raise DataTooLarge
        elements = values.reshape(-1)
    text = _encode_piece(tensor, elements if count <= PIECE else elements[:PIECE], nan)
    size = len(text)
    if count > PIECE:
        pieces = [text[:-1]]
        for start in range(PIECE, count, PIECE):
            if size > most_bytes:
                raise DataTooLarge
            piece = _encode_piece(tensor, elements[start : start + PIECE], nan)[1:-1]
            pieces.append(piece)
            size += len(piece) + 1
        text = b",".join(pieces) + b"]"
    if size > most_bytes:
        raise DataTooLarge
    return text


def _encode_piece(tensor: str, elements: Sequence[bytes] | Array, nan: JsonNan) -> bytes:
    if not isinstance(elements, np.ndarray):
        try:
            return orjson.dumps([element.decode() for element in elements])
        except UnicodeDecodeError as error:
            raise BadTensor(f"output '{tensor}' is not UTF-8 text; ask for it as binary data") from error
    text = orjson.dumps(elements, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"n" in text and nan is not JsonNan.NULL:  # the n of null, which orjson writes for NaN and infinities
        return json.dumps(nested_lists(elements, nan), separators=(",", ":")).encode()
    return text


def nested_lists(values: Array, nan: JsonNan) -> Any:
    """The elements of an array as nested lists, with strings for NaN and infinities unless `nan` is LITERAL."""
    if nan is JsonNan.LITERAL or values.dtype.kind != "f":
        return values.tolist()
    elements = values.astype(np.object_)
    elements[np.isnan(values)] = "NaN"
    elements[values == np.inf] = "Infinity"
    elements[values == -np.inf] = "-Infinity"
    return elements.tolist()


def _depth(data: object) -> int:
    """The nesting depth of lists, judged by their first elements."""
    if isinstance(data, msgspec.Raw):
        text = memoryview(data)
        if text[0] == _BRACKET:  # the two most common openings
            if text[1] in _NUMBER:
                return 1
            if text[1] == _BRACKET and text[2] in _NUMBER:
                return 2
        opening = _OPENING.match(text)
        return opening.group().count(b"[") if opening else 0
    depth = 0
    while isinstance(data, list):
        depth += 1
        data = data[0] if data else None
    return depth


def _list_type(element: Any, depth: int) -> Any:
    for _ in range(depth):
        element = types.GenericAlias(list, (element,))
    return element


@functools.lru_cache(maxsize=1024)
def _floats(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}f")


@functools.cache
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_list_type(_ELEMENTS[datatype], depth))
