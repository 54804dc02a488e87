"""Checks the settings of sequences: by themselves, and against the tensors of the model's file."""

from collections.abc import Sequence
from pathlib import Path

from sluice.models.errors import ConfigError
from sluice.models.pipelines.model_reference import expected_one_of
from sluice.models.sequence_batching import ControlKind, SequenceBatching, SequenceState
from sluice.models.tensors.spec import VARIABLE, TensorSpec
from sluice.models.triton_config.model_config import DATA_TYPE, TritonModelConfig

STATE_DIRECTORY = "initial_state"
"""The directory beside the versions of a model that holds files of initial states."""
MOST_CANDIDATES = 1 << 20
"""The most sequences that an instance may have at a time: each takes memory of the scheduler."""
_ID_TYPES = ("TYPE_STRING", "TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32")


def check_sequences(config: TritonModelConfig, batching: SequenceBatching, path: str) -> None:
    """Check the settings of a configuration whose maximum batch size is known.

    Raises ConfigError, whose message starts with `path` and the field.
    """
    at = f"{path}: sequence_batching"
    rows = config.max_batch_size or 0
    if config.response_cache is not None and config.response_cache.enable:
        raise ConfigError(
            f"{path}: response_cache: expected none with sequence_batching: answers depend on earlier ones"
        )
    _check_controls(batching, at)
    for state in batching.state:
        _check_state(state, at)
    if (direct := batching.direct) is not None and not 0 <= direct.minimum_slot_utilization <= 1:
        raise ConfigError(
            f"{at}.direct.minimum_slot_utilization: expected 0 to 1, got {direct.minimum_slot_utilization:g}"
        )
    if (oldest := batching.oldest) is not None:
        if not 1 <= oldest.max_candidate_sequences <= MOST_CANDIDATES:
            raise ConfigError(
                f"{at}.oldest.max_candidate_sequences: expected 1 to {MOST_CANDIDATES}, "
                f"got {oldest.max_candidate_sequences}"
            )
        for size in oldest.preferred:
            if not 0 < size <= max(rows, 1):
                raise ConfigError(
                    f"{at}.oldest.preferred_batch_size: expected 1 to max_batch_size {max(rows, 1)}, got {size}"
                )
    for tensor in config.input:
        if tensor.name in batching.given_inputs:
            raise ConfigError(f"{at}: '{tensor.name}' is given by the server; expected it not to be an input as well")
    if batching.state and config.backend == "python":
        raise ConfigError(f"{at}.state: expected none with backend python, which keeps its state itself")


def check_file(
    batching: SequenceBatching, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], path: str
) -> None:
    """Check the tensors that the server gives or keeps against those of a model's file, without the batch dimension.

    Raises as `check_sequences`.
    """
    at = f"{path}: sequence_batching"
    has = {tensor.name: tensor for tensor in inputs}
    for tensor in batching.control_input:
        control = tensor.control[0]
        wanted = control.data_type if control.kind is ControlKind.ID else control.values[0]
        _check_tensor(f"{at}: control_input '{tensor.name}'", tensor.name, wanted, (1,), has)
    makes = {tensor.name: tensor for tensor in outputs}
    for state in batching.state:
        place = f"{at}: state"
        _check_tensor(f"{place} '{state.input_name}'", state.input_name, state.data_type, state.dims, has)
        _check_tensor(f"{place} '{state.output_name}'", state.output_name, state.data_type, state.dims, makes)


def check_state_files(batching: SequenceBatching, path: Path) -> None:
    """Check that the files of initial states are there; `path` is that of the configuration. Raises as above."""
    for state in batching.state:
        for initial in state.initial_state:
            if initial.data_file and not (path.parent / STATE_DIRECTORY / initial.data_file).is_file():
                raise ConfigError(
                    f"{path}: sequence_batching: state '{state.input_name}': data_file: expected a file "
                    f"{STATE_DIRECTORY}/{initial.data_file} in the directory of the model"
                )


def _check_controls(batching: SequenceBatching, at: str) -> None:
    names: set[str] = set()
    kinds: set[ControlKind] = set()
    for tensor in batching.control_input:
        if not tensor.name:
            raise ConfigError(f"{at}: control_input: expected a name for every one")
        place = f"{at}: control_input '{tensor.name}'"
        if tensor.name in names:
            raise ConfigError(f"{place}: given twice")
        names.add(tensor.name)
        if len(tensor.control) != 1:
            raise ConfigError(f"{place}: expected one control, got {len(tensor.control)}")
        control = tensor.control[0]
        if control.kind in kinds:
            raise ConfigError(f"{place}: {control.kind} is given twice")
        kinds.add(control.kind)
        given = [control.int32_false_true, control.fp32_false_true, control.bool_false_true]
        values = [each for each in given if each]
        if control.kind is ControlKind.ID:
            if values:
                raise ConfigError(f"{place}: {control.kind} takes a data_type, and no values for false and true")
            if control.data_type not in _ID_TYPES:
                raise ConfigError(
                    f"{place}: data_type: expected one of {', '.join(_ID_TYPES)}, got {control.data_type}"
                )
        elif len(values) != 1 or len(values[0]) != 2:
            raise ConfigError(
                f"{place}: expected two values in one of int32_false_true, fp32_false_true and bool_false_true"
            )


def _check_state(state: SequenceState, at: str) -> None:
    if not (state.input_name and state.output_name):
        raise ConfigError(f"{at}: state: expected an input_name and an output_name")
    place = f"{at}: state '{state.input_name}'"
    if state.data_type not in DATA_TYPE.values():
        raise ConfigError(f"{place}: data_type {state.data_type} is not supported")
    if not state.dims or any(dim < 1 and dim != VARIABLE for dim in state.dims):
        raise ConfigError(f"{place}: dims: expected numbers of at least 1, or -1, got {list(state.dims)}")
    if len(state.initial_state) > 1:
        raise ConfigError(f"{place}: initial_state: expected at most one, got {len(state.initial_state)}")
    for initial in state.initial_state:
        if initial.data_type != state.data_type:
            raise ConfigError(f"{place}: initial_state: expected data_type {state.data_type}, got {initial.data_type}")
        fits = len(initial.dims) == len(state.dims) and all(
            got >= 1 and want in (VARIABLE, got) for got, want in zip(initial.dims, state.dims, strict=True)
        )
        if not fits:
            raise ConfigError(f"{place}: initial_state: dims: expected {list(state.dims)}, got {list(initial.dims)}")
        if initial.zero_data == bool(initial.data_file):
            raise ConfigError(f"{place}: initial_state: expected either zero_data or data_file")
        if "/" in initial.data_file or initial.data_file in {".", ".."}:
            raise ConfigError(f"{place}: initial_state: data_file: expected the name of a file in {STATE_DIRECTORY}")


def _check_tensor(place: str, name: str, data_type: str, dims: tuple[int, ...], has: dict[str, TensorSpec]) -> None:
    known = has.get(name)
    if known is None:
        raise ConfigError(f"{place}: there is no such tensor in the model's file; {expected_one_of(has)}")
    if DATA_TYPE[known.datatype] != data_type:
        raise ConfigError(f"{place}: data_type is {data_type}, but {DATA_TYPE[known.datatype]} in the model's file")
    if len(known.shape) != len(dims) or any(
        VARIABLE not in (want, got) and want != got for want, got in zip(known.shape, dims, strict=True)
    ):
        raise ConfigError(f"{place}: dims are {list(dims)}, but {list(known.shape)} in the model's file")
