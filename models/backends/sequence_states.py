"""Runs batches of sequences: gives the control inputs of a model, and keeps the states of its sequences."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from sluice.models.backends.base import Backend
from sluice.models.backends.calling import CallingBackend
from sluice.models.backends.configured import calling_backend
from sluice.models.backends.requests import RequestFailure, RequestPart
from sluice.models.errors import BackendFailed, ConfigError, SequencesLost
from sluice.models.regular_file import MAX_TEXT_BYTES, open_regular
from sluice.models.sequence_batching import (
    Control,
    ControlKind,
    SequenceBatching,
    SequenceRow,
    SequenceState,
    SequenceStep,
)
from sluice.models.tensors.arrays import Array, decode_bytes, numpy_dtype
from sluice.models.tensors.spec import VARIABLE, DataType, element_count
from sluice.models.triton_config.model_config import DATATYPE, decode_config
from sluice.models.triton_config.sequences import STATE_DIRECTORY

States = dict[str, Array]
"""The states of one sequence, without a batch dimension, by the name of the input that reads them."""


class _ControlTensor(NamedTuple):
    """A control input; `on` tells of a row whether the signal is true, None for the id of its sequence."""

    name: str
    datatype: DataType
    values: tuple[float, ...]
    on: Callable[[SequenceRow], bool] | None


class SequenceStates:
    """The states of the sequences of a model in this process, by slot; there are as many as slots at most.

    With the direct strategy the slot of a sequence is its row: rows without a request get zeros, with a control READY
    that is false. A sequence that starts gets the initial states, whatever the slot held before.
    """

    def __init__(self, batching: SequenceBatching, batchable: bool, outputs: Sequence[str], directory: Path) -> None:
        self._batchable = batchable
        self._is_direct = batching.is_direct and batchable
        self._controls = [
            _control_tensor(each.name, control) for each in batching.control_input for control in each.control
        ]
        self._kept = {state.output_name: state.input_name for state in batching.state}
        self._initial = {state.input_name: _initial(state, directory) for state in batching.state}
        self._outputs = frozenset(outputs)
        self._slots: dict[int, States] = {}
        self.given_inputs = batching.given_inputs
        """The inputs that clients do not send."""

    def starting(self, inputs: Mapping[str, Array]) -> list[SequenceRow]:
        """The rows of a batch in which each row is a whole sequence."""
        count = next(iter(inputs.values())).shape[0] if self._batchable else 1
        is_text = any(each.on is None and each.datatype is DataType.BYTES for each in self._controls)
        return [
            SequenceRow(slot, SequenceStep(str(slot + 1) if is_text else slot + 1, start=True, end=True))
            for slot in range(count)
        ]

    def clear(self) -> None:
        """Forget the states of all sequences."""
        self._slots.clear()

    def begin(self, rows: Sequence[SequenceRow]) -> None:
        """Give sequences that start the initial states; raises SequencesLost if the state of another one was lost."""
        for row in rows:
            if row.step.start:
                self._slots[row.slot] = self._initial
            elif row.slot not in self._slots:
                raise SequencesLost(f"the state of sequence {row.step.id} is gone; start the sequence again")

    def run(self, backend: Backend, inputs: Mapping[str, Array], rows: Sequence[SequenceRow]) -> dict[str, Array]:
        """Run a batch whose rows belong to sequences; raises BackendFailed, and the states stay as they are.

        Sequences whose states have different shapes run one batch after the other. Raises as `begin`.
        """
        self.begin(rows)
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for position, row in enumerate(rows):
            shapes = tuple(array.shape for array in self._slots[row.slot].values())
            alike.setdefault(shapes, []).append(position)
        if len(alike) == 1:
            return self._run(backend, inputs, rows)
        whole: dict[str, Array] = {}
        for positions in alike.values():
            part = self._run(
                backend, {name: array[positions] for name, array in inputs.items()}, [rows[each] for each in positions]
            )
            for name, array in part.items():
                if name not in whole:
                    whole[name] = np.empty((len(rows), *array.shape[1:]), array.dtype)
                elif whole[name].shape[1:] != array.shape[1:]:
                    raise BackendFailed(f"output {name}: sequences of one batch have outputs of different shapes")
                whole[name][positions] = array
        return whole

    def _run(self, backend: Backend, inputs: Mapping[str, Array], rows: Sequence[SequenceRow]) -> dict[str, Array]:
        """Run rows whose states have the same shapes."""
        at, width = self._places(rows)
        feed = self.feed(inputs, rows)
        for name, initial in self._initial.items():
            if not self._batchable:
                feed[name] = self._slots[rows[0].slot][name]
                continue
            states = [self._slots[row.slot][name] for row in rows]
            feed[name] = self._placed(np.stack(states).astype(initial.dtype, copy=False), at, width)
        outputs = backend.run(feed)
        made = {name: self._taken(name, array, at, width) for name, array in outputs.items()}
        for output, name in self._kept.items():
            if output not in made:
                raise BackendFailed(f"state output {output} is missing")
            for position, row in enumerate(rows):
                state = made[output][position] if self._batchable else made[output]
                self._slots[row.slot] = {**self._slots[row.slot], name: np.array(state)}
        return {name: array for name, array in made.items() if name in self._outputs}

    def feed(self, inputs: Mapping[str, Array], rows: Sequence[SequenceRow]) -> dict[str, Array]:
        """The inputs of a model without its states: those of clients with each row in its place, and the controls."""
        at, width = self._places(rows)
        feed = {name: self._placed(array, at, width) for name, array in inputs.items()}
        for control in self._controls:
            feed[control.name] = self._signal(control, rows, at, width)
        return feed

    def placed_requests(self, requests: Sequence[RequestPart], rows: Sequence[SequenceRow]) -> list[RequestPart]:
        """The requests of `feed`, one a row; a row without a request has an empty one."""
        at, width = self._places(rows)
        placed = [RequestPart(1)] * width
        for position, request in zip(at, requests, strict=True):
            placed[position] = request
        return placed

    def taken_outputs(self, outputs: Mapping[str, Array], rows: Sequence[SequenceRow]) -> dict[str, Array]:
        """The rows of the outputs that belong to requests; raises BackendFailed if there are too few or too many."""
        at, width = self._places(rows)
        return {name: self._taken(name, array, at, width) for name, array in outputs.items()}

    def taken_errors(self, errors: Sequence[RequestFailure], rows: Sequence[SequenceRow]) -> tuple[RequestFailure, ...]:
        """The errors of requests, by their position in the batch instead of that in `placed_requests`."""
        at, _ = self._places(rows)
        position = {place: index for index, place in enumerate(at)}
        return tuple([replace(each, position=position[each.position]) for each in errors if each.position in position])

    def _places(self, rows: Sequence[SequenceRow]) -> tuple[list[int], int]:
        """The row of each request in the model's tensors, and the number of their rows."""
        at = [row.slot for row in rows] if self._is_direct else list(range(len(rows)))
        return at, max(at) + 1

    def _placed(self, array: Array, at: Sequence[int], width: int) -> Array:
        """An array with its rows where the model expects them, zeros elsewhere."""
        if not self._batchable or (len(at) == width and list(at) == list(range(width))):
            return array
        blank = b"" if array.dtype == np.object_ else 0
        placed = np.full((width, *array.shape[1:]), blank, array.dtype)
        placed[at] = array
        return placed

    def _taken(self, name: str, array: Array, at: Sequence[int], width: int) -> Array:
        if not self._batchable:
            return array
        if not array.ndim or array.shape[0] != width:
            raise BackendFailed(f"output {name} has shape {list(array.shape)}, expected {width} rows as in the batch")
        return array if len(at) == width and list(at) == list(range(width)) else array[at]

    def _signal(self, control: _ControlTensor, rows: Sequence[SequenceRow], at: Sequence[int], width: int) -> Array:
        dtype = numpy_dtype(control.datatype)
        if control.on is None:
            blank: object = b"" if control.datatype is DataType.BYTES else 0
            values = np.full(width, blank, dtype)
            for position, row in zip(at, rows, strict=True):
                values[position] = _identity(row.step.id, control.datatype)
        else:
            values = np.full(width, control.values[0], dtype)
            for position, row in zip(at, rows, strict=True):
                values[position] = control.values[int(control.on(row))]
        return values.reshape(width, 1) if self._batchable else values


class StartingSequences:
    """A backend whose batches are run as sequences of one request each, for warm-up and measurement; see `Backend`.

    `calling` is the backend as one whose models see the requests.
    """

    def __init__(self, backend: Backend, states: SequenceStates, calling: CallingBackend | None = None) -> None:
        self._calling = calling
        self.provider, self.threads = backend.provider, backend.threads
        self.inputs = tuple(tensor for tensor in backend.inputs if tensor.name not in states.given_inputs)
        self.outputs = backend.outputs
        self._backend = backend
        self._states = states

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run one batch."""
        rows = self._states.starting(inputs)
        if self._calling is not None:
            requests = [RequestPart(1, sequence=row.step) for row in rows]
            placed = self._states.placed_requests(requests, rows)
            return self._states.taken_outputs(self._calling.measure(self._states.feed(inputs, rows), placed), rows)
        try:
            return self._states.run(self._backend, inputs, rows)
        finally:
            self._states.clear()


def measurable(backend: Backend, states: SequenceStates | None) -> Backend:
    """A backend that runs without clients: its sequences are of one request each, if it has any."""
    return backend if states is None else StartingSequences(backend, states, calling_backend(backend))


def sequence_states(config: str, path: str) -> SequenceStates | None:
    """The states of a model with sequences, None for another; `config` is its configuration, `path` its file.

    Raises BackendFailed for a file of an initial state that does not fit.
    """
    if not config:
        return None
    form = decode_config(config)
    if form.sequence_batching is None:
        return None
    # The version directory may hold the file, or a directory with it.
    directory = next((each for each in Path(path).parents[1:3] if (each / STATE_DIRECTORY).is_dir()), Path(path).parent)
    outputs = [tensor.name for tensor in form.output]
    return SequenceStates(form.sequence_batching, bool(form.max_batch_size), outputs, directory / STATE_DIRECTORY)


def _control_tensor(name: str, control: Control) -> _ControlTensor:
    if control.kind is ControlKind.ID:
        return _ControlTensor(name, DATATYPE[control.data_type], (), None)
    data_type, values = control.values
    return _ControlTensor(name, DATATYPE[data_type], values, _SIGNALS[control.kind])


def _starts(row: SequenceRow) -> bool:
    return row.step.start


def _ends(row: SequenceRow) -> bool:
    return row.step.end


def _is_ready(row: SequenceRow) -> bool:
    del row
    return True


_SIGNALS: Mapping[ControlKind, Callable[[SequenceRow], bool]] = {
    ControlKind.START: _starts,
    ControlKind.END: _ends,
    ControlKind.READY: _is_ready,
}


def _identity(identity: int | str, datatype: DataType) -> object:
    """The id of a sequence in a datatype; of a number that is too large, its lowest bits, as in Triton."""
    if datatype is DataType.BYTES:
        return str(identity).encode()
    bits = 8 * datatype.itemsize
    value = (identity if isinstance(identity, int) else 0) & ((1 << bits) - 1)
    is_negative = datatype in (DataType.INT32, DataType.INT64) and value >> (bits - 1)
    return value - (1 << bits) if is_negative else value


def _initial(state: SequenceState, directory: Path) -> Array:
    """The state of a sequence that starts; variable dimensions are 1 unless its initial state has others."""
    datatype = DATATYPE[state.data_type]
    initial = state.initial_state[0] if state.initial_state else None
    dims = initial.dims if initial is not None else tuple(1 if dim == VARIABLE else dim for dim in state.dims)
    if initial is None or not initial.data_file:
        return np.full(dims, b"" if datatype is DataType.BYTES else 0, numpy_dtype(datatype))
    file = directory / initial.data_file
    is_text = datatype is DataType.BYTES
    wanted = MAX_TEXT_BYTES if is_text else element_count(dims) * datatype.itemsize
    try:
        with open_regular(file) as opened:
            data = opened.read(wanted)
    except (ConfigError, OSError) as error:
        raise BackendFailed(f"the initial state cannot be read: {error}") from error
    if is_text:
        return decode_bytes(data, dims, f"{file}: initial state")
    if len(data) < wanted:
        raise BackendFailed(f"{file}: the initial state takes {wanted} bytes, but the file has only {len(data)}")
    return np.frombuffer(data, numpy_dtype(datatype)).reshape(dims)
