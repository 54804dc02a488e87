"""Templates of requests: what a front end sends once, and the gateway's process checks once."""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from sluice.gateway.front_ends.messages import ALIGNMENT, TEMPLATES, InputShape, Particulars, Template
from sluice.gateway.front_ends.numbers import Numbered
from sluice.gateway.protocol.answer import Tensor
from sluice.gateway.protocol.request import WireTensor
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import PartitionError, RequestError
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.tensors.arrays import WireBytes, numpy_dtype
from sluice.models.tensors.spec import DataType, element_count
from sluice.mps.ipc.messages import OutputTensor
from sluice.mps.ipc.places import is_whole

_Key: TypeAlias = tuple[object, ...]


class Served(NamedTuple):
    """A pipeline that gets requests, and its signature."""

    pipeline: Pipeline
    signature: Signature


class SentTemplate(Numbered):
    """A template in the front end. Clients asked for `version` of the signature's pipeline."""

    __slots__ = ("_inputs", "_options", "_version", "signature")

    def __init__(
        self, signature: Signature, version: str, inputs: Mapping[str, Tensor], options: RequestOptions
    ) -> None:
        super().__init__()
        self.signature = signature
        self._version = version
        self._inputs = tuple(InputShape(name, tensor.shape) for name, tensor in inputs.items())
        self._options = options

    def message(self) -> Template:
        """The template as it is sent."""
        signature, options = self.signature, self._options
        return Template(
            self.number,
            signature.name,
            self._version,
            signature.key,
            self._inputs,
            None if options.names is signature.output_names else tuple(options.names),
            options.max_cost,
            options.explain,
            options.priority,
            options.timeout_ns,
            options.min_accuracy,
            options.start_after_ns,
        )


class SentTemplates:
    """The templates of the last requests, at most TEMPLATES of them."""

    def __init__(self) -> None:
        self._known: dict[_Key, SentTemplate] = {}
        self._of_options: dict[int, tuple[RequestOptions, SentTemplate]] = {}

    def find(
        self, signature: Signature, version: str, inputs: Mapping[str, Tensor], options: RequestOptions
    ) -> SentTemplate:
        """The template of a checked request, a new one if there is none."""
        # Requests that a transport finds to be alike have the same options, and inputs of the same shapes.
        known = self._of_options.get(id(options))
        if known is not None and known[0] is options:
            return known[1]
        key = (
            signature,
            tuple(options.names),
            options.max_cost,
            options.explain,
            options.priority,
            options.timeout_ns,
            options.min_accuracy,
            options.start_after_ns,
            *((name, tensor.shape) for name, tensor in inputs.items()),
        )
        template = self._known.pop(key, None)
        if template is None:
            template = SentTemplate(signature, version, inputs, options)
            if len(self._known) >= TEMPLATES:
                del self._known[next(iter(self._known))]
        self._known[key] = template  # as the last one
        if len(self._of_options) >= TEMPLATES:
            self._of_options.clear()
        self._of_options[id(options)] = options, template
        return template

    def clear(self) -> None:
        """Forget all: what is served has changed."""
        self._known.clear()
        self._of_options.clear()


class _Input(NamedTuple):
    """An input of a template, `start` bytes after the first one. `dtype` is None for BYTES, whose size varies."""

    name: str
    datatype: DataType
    dtype: np.dtype[np.generic] | None
    shape: tuple[int, ...]
    start: int
    nbytes: int


class TakenTemplate:
    """A template in the gateway's process, checked against the pipeline `served` that it is for.

    Raises PartitionError if no request can be like that.
    """

    __slots__ = ("_inputs", "_nbytes", "_options", "_rows", "_varies", "signature", "template")

    def __init__(self, template: Template, served: Served) -> None:
        self.template = template
        self.signature = signature = served.signature
        datatypes = {spec.name: spec.datatype for spec in served.pipeline.inputs}
        try:
            # As a client's request would be checked that has such tensors.
            tensors = [_without_content(each, signature.input_datatypes) for each in template.inputs]
            _, self._rows, batch_key, _ = signature.check_inputs(tensors)
            names = signature.check_outputs(template.outputs or ())
        except (RequestError, ValueError, OverflowError) as error:
            raise PartitionError(f"a template of {template.key} cannot be: {error}") from error
        self._inputs: list[_Input] = []
        self._varies = False
        start = end = 0
        for name, shape in ((each.name, each.shape) for each in template.inputs):
            datatype = datatypes[name]
            dtype = None if datatype is DataType.BYTES else numpy_dtype(datatype)
            nbytes = 0 if dtype is None else element_count(shape) * dtype.itemsize
            self._varies = self._varies or dtype is None
            self._inputs.append(_Input(name, datatype, dtype, shape, start, nbytes))
            end = start + nbytes
            start = aligned(end)
        self._nbytes = end
        memory_bytes = sum(each.nbytes for each in self._inputs)
        self._options = RequestOptions(
            names,
            self._rows,
            batch_key,
            memory_bytes,
            0,
            "",
            template.max_cost,
            template.explain,
            template.priority,
            None,
            template.timeout_ns,
            min_accuracy=template.min_accuracy,
            start_after_ns=template.start_after_ns,
        )

    def options(self, budget_ns: int, id: str, located: Mapping[str, OutputTensor]) -> RequestOptions:
        """The options of a request whose inputs are `located`."""
        like = self._options
        if budget_ns == like.budget_ns and not id and not self._varies:
            return like
        memory_bytes = sum(each.nbytes for each in located.values()) if self._varies else like.memory_bytes
        options = RequestOptions(
            like.names,
            like.rows,
            like.batch_key,
            memory_bytes,
            budget_ns,
            id,
            like.max_cost,
            like.explain,
            like.priority,
            None,
            like.timeout_ns,
            min_accuracy=like.min_accuracy,
            start_after_ns=like.start_after_ns,
        )
        if not id:
            self._options = options  # most requests have the same objective
        return options

    def locate(
        self, region: int, memory: memoryview, offset: int, particulars: Particulars
    ) -> tuple[dict[str, OutputTensor], dict[str, Tensor]]:
        """The places of the inputs that begin at an offset of a region, and the inputs. O(inputs), O(rows) for BYTES.

        Raises PartitionError for places that are not in the region.
        """
        if particulars.starts:
            return self._locate_apart(region, memory, offset, particulars.starts)
        if self._varies:
            return self._locate_bytes(region, memory, offset, particulars)
        if offset < 0 or offset + self._nbytes > memory.nbytes:
            raise PartitionError(f"inputs of {self.template.key} are not within their region")
        located: dict[str, OutputTensor] = {}
        tensors: dict[str, Tensor] = {}
        for name, datatype, dtype, shape, start, nbytes in self._inputs:
            begin = offset + start
            located[name] = OutputTensor(name, datatype, shape, region, begin, nbytes)
            tensors[name] = np.ndarray(shape, dtype, memory, begin)
        return located, tensors

    def _locate_apart(
        self, region: int, memory: memoryview, offset: int, starts: tuple[int, ...]
    ) -> tuple[dict[str, OutputTensor], dict[str, Tensor]]:
        """As `locate`, for inputs that do not lie one after the other, but begin at these distances from the offset."""
        if self._varies or len(starts) != len(self._inputs):
            raise PartitionError(f"inputs of {self.template.key} cannot begin at {len(starts)} places")
        located: dict[str, OutputTensor] = {}
        tensors: dict[str, Tensor] = {}
        for (name, datatype, dtype, shape, _, nbytes), start in zip(self._inputs, starts, strict=True):
            begin = offset + start
            if not 0 <= begin <= begin + nbytes <= memory.nbytes:
                raise PartitionError(f"inputs of {self.template.key} are not within their region")
            located[name] = OutputTensor(name, datatype, shape, region, begin, nbytes)
            tensors[name] = np.ndarray(shape, dtype, memory, begin)
        return located, tensors

    def _locate_bytes(
        self, region: int, memory: memoryview, begin: int, particulars: Particulars
    ) -> tuple[dict[str, OutputTensor], dict[str, Tensor]]:
        """As `locate`, with BYTES, from whose size follows where later inputs are."""
        located: dict[str, OutputTensor] = {}
        tensors: dict[str, Tensor] = {}
        of_bytes = iter(particulars.row_offsets)
        for name, datatype, dtype, shape, _, size in self._inputs:
            row_offsets = next(of_bytes, ()) if dtype is None else None
            nbytes = row_offsets[-1] if row_offsets else size
            located[name] = place = OutputTensor(name, datatype, shape, region, begin, nbytes, row_offsets)
            if row_offsets is not None and (len(row_offsets) != self._rows + 1 or not is_whole(place)):
                raise PartitionError(f"input '{name}' of {self.template.key} has no offsets of {self._rows} rows")
            if not 0 <= begin <= begin + nbytes <= memory.nbytes:
                raise PartitionError(f"inputs of {self.template.key} are not within their region")
            if row_offsets is None:
                tensors[name] = np.ndarray(shape, dtype, memory, begin)
            else:
                tensors[name] = WireBytes(memory[begin : begin + nbytes], shape, np.array(row_offsets, np.int64))
            begin = aligned(begin + nbytes)
        return located, tensors


def aligned(nbytes: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _without_content(given: InputShape, datatypes: Mapping[str, str]) -> WireTensor:
    """An input of that shape whose elements take no memory."""
    elements = np.broadcast_to(np.zeros((), np.uint8), (max(element_count(given.shape), 0),))
    return WireTensor(given.name, datatypes.get(given.name, ""), given.shape, elements)
