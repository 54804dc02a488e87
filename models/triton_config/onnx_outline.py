"""Reads what an ONNX file says about itself, and passes over its weights, which may be gigabytes.

A pass over the fields of the protobuf message (https://protobuf.dev/programming-guides/encoding/), by the numbers in
onnx.proto; it needs neither the package of ONNX nor that of protobuf, so workers can use it as well.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sluice.models.errors import ConfigError
from sluice.models.regular_file import beside, check_regular, open_regular

MAX_FIELDS = 1_000_000
"""The number of fields that are looked at: the largest published graphs have some 100 000 nodes."""
MAX_KEPT_BYTES = 16 << 20
"""The bytes of names, inputs and outputs that are kept."""

_GRAPH = 7
_INITIALIZER, _INPUT, _OUTPUT, _SPARSE = 5, 11, 12, 15
_SPARSE_VALUES = 1
_NAME, _EXTERNAL = 8, 13
_KEY, _VALUE = 1, 2
_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_HEAD_BYTES = 64
_OTHER_KINDS = {
    b"version https://git-lfs": "it is a pointer of Git LFS; get the file itself with git lfs pull",
    b"<": "it is a page of HTML or XML, not the file behind it",
    b"PK\x03\x04": "it is a ZIP archive, such as torch.save writes; export the model to ONNX",
    b"\x89HDF": "it is a file of HDF5, such as Keras writes; convert the model to ONNX",
    b"\x80": "it is a pickle; export the model to ONNX",
}
"""Descriptions of files that users take for an ONNX model, by the first bytes."""


@dataclass(slots=True)
class OnnxOutline:
    """The encoded `ValueInfoProto` of each input and output, the names of weights, and the files that hold weights.

    `external` are as in the file: relative to its directory.
    """

    inputs: list[bytes] = field(default_factory=list)
    outputs: list[bytes] = field(default_factory=list)
    weights: set[str] = field(default_factory=set)
    external: set[str] = field(default_factory=set)


def read_outline(path: Path) -> OnnxOutline:
    """Read the outline of a file; raises ConfigError, whose message starts with `path`, also for a truncated file."""
    with open_regular(path) as file:
        try:
            return _Reading(file, os.fstat(file.fileno()).st_size).outline()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except _Malformed as error:
            file.seek(0)
            reason = _other_kind(file.read(_HEAD_BYTES)) or error
            raise ConfigError(f"{path}: not an ONNX model: {reason}") from error


def _other_kind(head: bytes) -> str:
    """The description of a file that users take for a model, by its first bytes; empty for another one."""
    return next((kind for mark, kind in _OTHER_KINDS.items() if head.lstrip().startswith(mark)), "")


def check_external(path: Path, outline: OnnxOutline) -> None:
    """Raise ConfigError unless every file with weights of the model `path` is a regular file `beside` it.

    A place outside of the directory is left to ONNX Runtime, which refuses it.
    """
    for location in sorted(outline.external):
        if is_inside(location):
            file = beside(path, location)
            try:
                check_regular(file)
            except ConfigError as error:
                reason = str(error).removeprefix(f"{file}: ")
                raise ConfigError(f"{path}: its weights are in '{location:.255}': {reason}") from error


def is_inside(location: str) -> bool:
    """True if a place of external data is, by its name, inside of the directory of the model."""
    return bool(location) and not os.path.isabs(location) and ".." not in Path(location).parts and "\0" not in location


class _Malformed(Exception):
    """The file is not the encoding of a message."""


class _Field(NamedTuple):
    """A field with its bytes, from `start` to `end`; empty unless it has a length."""

    number: int
    start: int
    end: int


class _Reading:
    """A pass over a file of `size` bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0
        self._fields = 0
        self._kept_bytes = 0

    def outline(self) -> OnnxOutline:
        found = OnnxOutline()
        for part in self._message(0, self._size):
            if part.number == _GRAPH:
                for inner in self._message(part.start, part.end):
                    self._of_graph(inner, found)
        return found

    def _of_graph(self, part: _Field, found: OnnxOutline) -> None:
        if part.number == _INPUT:
            found.inputs.append(self._bytes(part))
        elif part.number == _OUTPUT:
            found.outputs.append(self._bytes(part))
        elif part.number == _INITIALIZER:
            self._weight(part, found)
        elif part.number == _SPARSE:
            for inner in self._message(part.start, part.end):
                if inner.number == _SPARSE_VALUES:
                    self._weight(inner, found)

    def _weight(self, tensor: _Field, found: OnnxOutline) -> None:
        name = ""
        for part in self._message(tensor.start, tensor.end):
            if part.number == _NAME:
                name = self._text(part)
            elif part.number == _EXTERNAL:
                pair = {inner.number: self._text(inner) for inner in self._message(part.start, part.end)}
                if pair.get(_KEY) == "location":
                    found.external.add(pair.get(_VALUE, ""))
        found.weights.add(name)

    def _message(self, start: int, end: int) -> Iterator[_Field]:
        """The fields of the message between two places; what is read between two of them does not matter."""
        at = start
        while at < end:
            self._seek(at)
            key = self._varint(end)
            number, kind = key >> 3, key & 7
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise _Malformed(f"it has more than {MAX_FIELDS} parts")
            first = self._at
            if kind == _VARINT:
                self._varint(end)
                at = first = self._at
            elif kind == _BYTES:
                length = self._varint(end)
                first, at = self._at, self._at + length
            elif kind in {_I64, _I32}:
                at = first = first + (8 if kind == _I64 else 4)
            else:
                raise _Malformed(f"a field of the unknown kind {kind} at byte {at}")
            if not number:
                raise _Malformed(f"a field without a number at byte {at}")
            if at > end:
                raise _Malformed(f"it ends early: a part reaches to byte {at}, and there are {end}")
            yield _Field(number, first, at)

    def _varint(self, end: int) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._file.read(1) if self._at < end else b""
            if not byte:
                raise _Malformed(f"it ends early, at byte {self._at}")
            self._at += 1
            value |= (byte[0] & 0x7F) << (7 * index)
            if byte[0] < 0x80:
                return value
        raise _Malformed(f"a number of more than {_MAX_VARINT_BYTES} bytes at byte {self._at}")

    def _bytes(self, part: _Field) -> bytes:
        self._kept_bytes += part.end - part.start
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise _Malformed(f"its names, inputs and outputs have more than {MAX_KEPT_BYTES} bytes")
        self._seek(part.start)
        data = self._file.read(part.end - part.start)
        self._at = part.start + len(data)
        if self._at < part.end:
            raise _Malformed(f"it ends early, at byte {self._at}")
        return data

    def _text(self, part: _Field) -> str:
        return self._bytes(part).decode("utf-8", "surrogateescape")

    def _seek(self, place: int) -> None:
        if place != self._at:
            self._file.seek(place)
            self._at = place
