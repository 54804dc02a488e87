"""Completes a model's configuration from the model file, and checks the rest of it against the file."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from sluice.models.errors import ConfigError
from sluice.models.pipelines.model_reference import expected_one_of
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.regular_file import beside, read_text
from sluice.models.spec import ModelSpec
from sluice.models.tensors.spec import VARIABLE, DataType, TensorSpec
from sluice.models.triton_config.check import PLATFORMS, check_batching, check_options, check_warm_up
from sluice.models.triton_config.ensemble import EnsembleCheck
from sluice.models.triton_config.file_tensors import FileTensors, without_batch
from sluice.models.triton_config.instance_groups import CPU, completed_groups, replicas
from sluice.models.triton_config.model_config import (
    DATA_TYPE,
    UNTYPED,
    InputConfig,
    LatestVersions,
    OutputConfig,
    TensorConfig,
    TritonModelConfig,
    VersionPolicy,
)
from sluice.models.triton_config.pbtxt import encode_config
from sluice.models.triton_config.sequences import check_file, check_sequences, check_state_files

_Config = TypeVar("_Config", bound=TensorConfig)


def configured_spec(
    config: TritonModelConfig,
    file: FileTensors | None,
    name: str,
    version: int,
    path: Path,
    *,
    default_rows: int,
    most_rows: int | None,
    kinds: Collection[str] = (CPU,),
) -> ModelSpec:
    """Return the spec of a checked configuration, the file `path`, and a model file's tensors (None: it has none).

    A maximum batch size that is not given is `default_rows` if the model can be batched; `most_rows` limits any.
    `kinds` are the kinds of the partitions. Raises ConfigError, whose message starts with `path` and the field or
    tensor.
    """
    check_options(config, str(path))
    given_rows = config.max_batch_size
    if file is not None:
        file = _ranked(config, file, str(path))
    config = _complete(config, file, str(path), default_rows if most_rows is None else most_rows)
    rows = config.max_batch_size or 0
    if rows and most_rows is not None and most_rows < rows:
        rows = most_rows
        config = msgspec.structs.replace(config, max_batch_size=rows)
    if config.dynamic_batching is not None:
        check_batching(config.dynamic_batching, rows, str(path))
    if config.sequence_batching is not None:
        check_sequences(config, config.sequence_batching, str(path))
        check_state_files(config.sequence_batching, path)
    for warm_up in config.model_warmup:
        check_warm_up(warm_up, config.input, rows, str(path))
    backend = config.backend or ("" if file is None else PLATFORMS.get(file.platform, ""))
    full = msgspec.structs.replace(
        config,
        name=name,
        backend=backend,
        platform=file.platform if file is not None and file.platform in PLATFORMS else config.platform,
        version_policy=config.version_policy or VersionPolicy(latest=LatestVersions(1)),
        instance_group=completed_groups(config.instance_group, name, backend, kinds),
    )
    inputs = tuple(tensor.spec() for tensor in config.input)
    outputs = tuple(tensor.spec(read_labels(path, tensor.label_filename)) for tensor in config.output)
    batching = config.dynamic_batching
    if config.is_decoupled:
        # Each request is a batch of its own, whatever its batch dimension is.
        if rows:
            inputs, outputs = _with_batch(inputs), _with_batch(outputs)
        batching = batching and msgspec.structs.replace(batching, preferred=())
        rows = 0
    return ModelSpec(
        name=name,
        version=version,
        inputs=inputs,
        outputs=outputs,
        max_batch_size=rows,
        platform=config.platform or config.backend if file is None else file.platform,
        dynamic_batching=batching,
        sequence_batching=config.sequence_batching,
        replicas=replicas(config.instance_group),
        response_cache=config.response_cache is not None and config.response_cache.enable,
        config=encode_config(full),
        batching_note="the model is decoupled" if config.is_decoupled else _batching_note(given_rows, rows, file),
        decoupled=config.is_decoupled,
        notes=config.unused,
    )


def complete_ensemble(
    config: TritonModelConfig,
    models: Mapping[str, ModelSpec],
    ensembles: Mapping[str, Pipeline | None],
    name: str,
    version: int,
    path: Path,
) -> Pipeline:
    """Return the pipeline of a checked configuration, the file `path`, from `models`, by key, and other ensembles.

    `ensembles` are by name, None for one that cannot be served. Raises ConfigError, whose message starts with `path`
    and names the step and the tensor.
    """
    labels = {tensor.name: read_labels(path, tensor.label_filename) for tensor in config.output}
    full = msgspec.structs.replace(
        config, name=name, version_policy=config.version_policy or VersionPolicy(latest=LatestVersions(1))
    )
    return EnsembleCheck(config, models, ensembles, path).pipeline(name, version, labels, encode_config(full))


def read_labels(path: Path, filename: str) -> tuple[str, ...]:
    """The lines of a label file in the directory of the configuration `path`; none without a name.

    Raises ConfigError for a file that cannot be read, or whose name leads out of that directory. It may be a
    link.
    """
    if not filename:
        return ()
    at = f"{path}: label_filename: {filename}"
    if os.path.isabs(filename) or ".." in Path(filename).parts:
        raise ConfigError(f"{at}: expected a file in the directory of the model")
    file = path.parent / filename
    try:
        file = beside(path, filename)
        text = read_text(file)
    except (ConfigError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"{at}: {str(error).removeprefix(f'{file}: ')}") from error
    return tuple(line.strip() for line in text.removesuffix("\n").split("\n")) if text else ()


def _batching_note(given: int | None, rows: int, file: FileTensors | None) -> str:
    """The remark on batches of up to `rows`, of which the configuration gives `given`."""
    if rows:
        return "row by row: the model takes one row" if file is not None and file.one_row else ""
    if given == 0:
        return "max_batch_size is 0 in config.pbtxt"
    if file is None:
        return "config.pbtxt has no max_batch_size"
    if file.batchable:
        return "dims in config.pbtxt are those of whole batches; set max_batch_size and leave the batch dimension out"
    return file.no_batches


def _ranked(config: TritonModelConfig, file: FileTensors, path: str) -> FileTensors:
    """The tensors of a file, with the ranks of the configuration where the file declares none; raises ConfigError."""
    given = {tensor.name: tensor.model_shape for tensor in config.tensors}
    batch = (VARIABLE,) if config.max_batch_size else ()

    def ranked(role: str, tensor: TensorSpec) -> TensorSpec:
        if tensor.name not in file.unranked:
            return tensor
        if not given.get(tensor.name):
            raise ConfigError(f"{path}: {role} '{tensor.name}': expected dims: the model's file declares no rank")
        return msgspec.structs.replace(tensor, shape=batch + given[tensor.name])

    return file._replace(
        inputs=tuple(ranked("input", tensor) for tensor in file.inputs),
        outputs=tuple(ranked("output", tensor) for tensor in file.outputs),
    )


def _with_batch(tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The tensors with their batch dimension, which is variable."""
    return tuple(msgspec.structs.replace(tensor, shape=(VARIABLE, *tensor.shape)) for tensor in tensors)


def _complete(config: TritonModelConfig, file: FileTensors | None, path: str, default_rows: int) -> TritonModelConfig:
    if file is None:
        for kind, tensors in (("input", config.input), ("output", config.output)):
            if not tensors:
                raise ConfigError(f"{path}: {kind}: expected at least one: backend {config.backend} cannot complete it")
            for tensor in tensors:
                if tensor.data_type == UNTYPED or not tensor.dims:
                    raise ConfigError(f"{path}: {kind} '{tensor.name}': expected data_type and dims")
                if tensor.datatype is DataType.BF16:
                    raise ConfigError(
                        f"{path}: {kind} '{tensor.name}': TYPE_BF16 is not supported: numpy has no such type"
                    )
        return msgspec.structs.replace(config, max_batch_size=config.max_batch_size or 0)
    if optional := [tensor.name for tensor in config.input if tensor.optional]:
        raise ConfigError(
            f"{path}: input '{optional[0]}': optional: only models of backend python can be run without an input"
        )
    rows = _rows(config, file, path, default_rows)
    inputs, outputs = (without_batch(tensors) if rows else tensors for tensors in (file.inputs, file.outputs))
    if (batching := config.sequence_batching) is not None:
        check_file(batching, inputs, outputs, path)
        inputs = tuple(tensor for tensor in inputs if tensor.name not in batching.given_inputs)
        if not config.output:
            kept = {state.output_name for state in batching.state}
            outputs = tuple(tensor for tensor in outputs if tensor.name not in kept)
    completed = msgspec.structs.replace(
        config,
        max_batch_size=rows,
        input=_settle(InputConfig, config.input, inputs, f"{path}: input", rows),
        output=_settle(OutputConfig, config.output, outputs, f"{path}: output", rows),
    )
    if config.input and (missing := {tensor.name for tensor in inputs} - {tensor.name for tensor in config.input}):
        raise ConfigError(f"{path}: input '{min(missing)}' of the model's file is missing")
    return completed


def _rows(config: TritonModelConfig, file: FileTensors, path: str, default_rows: int) -> int:
    """The maximum batch size."""
    whole = (*file.inputs, *file.outputs)
    if config.max_batch_size is None:
        ranks = {tensor.name: len(tensor.shape) for tensor in whole}
        given_whole = any(
            tensor.dims and len(tensor.model_shape) == ranks.get(tensor.name) for tensor in config.tensors
        )
        return file.rows(default_rows) if file.batchable and not given_whole else 0
    if config.max_batch_size:
        # What the file says of an output may be outdated: the runs at load show whether it has the rows of the batch.
        for tensor in () if file.one_row else whole:
            allowed = {(VARIABLE,), (1,)} if tensor in file.outputs else {(VARIABLE,)}
            if tensor.shape[:1] not in allowed:
                raise ConfigError(
                    f"{path}: max_batch_size: {config.max_batch_size}, but '{tensor.name}' has the shape "
                    f"{list(tensor.shape)} in the model's file; expected a variable dimension in front, or 1 in front "
                    "of every input"
                )
        if file.rows(config.max_batch_size) < config.max_batch_size:
            raise ConfigError(
                f"{path}: max_batch_size: {config.max_batch_size}, but the model's file allows {file.most_rows}"
            )
    return config.max_batch_size


def _settle(
    form: type[_Config], given: Sequence[_Config], has: Sequence[TensorSpec], place: str, rows: int
) -> tuple[_Config, ...]:
    """Complete each given tensor from the file's and check it against that; all of the file's if none is given."""
    if not given:
        return tuple(form(name=each.name, data_type=DATA_TYPE[each.datatype], dims=each.shape) for each in has)
    by_name = {tensor.name: tensor for tensor in has}
    settled: list[_Config] = []
    for each in given:
        at = f"{place} '{each.name}'"
        known = by_name.get(each.name)
        if known is None:
            raise ConfigError(f"{at}: there is no such tensor in the model's file; {expected_one_of(by_name)}")
        typed = DATA_TYPE[known.datatype] if each.data_type == UNTYPED else each.data_type
        tensor = msgspec.structs.replace(each, data_type=typed, dims=each.dims or known.shape)
        if tensor.datatype != known.datatype:
            raise ConfigError(f"{at}: data_type is {typed}, but {DATA_TYPE[known.datatype]} in the model's file")
        shape = tensor.model_shape
        # An output may vary where the file has a number, as exporters write it that saw one size only.
        loose = (VARIABLE,) if form is OutputConfig else ()
        if len(shape) != len(known.shape) or any(
            want not in (VARIABLE, got) and got not in loose for want, got in zip(known.shape, shape, strict=True)
        ):
            what = "dims are" if tensor.reshape is None else "reshape is"
            without = f" after the batch dimension (max_batch_size is {rows})" if rows else ""
            raise ConfigError(f"{at}: {what} {list(shape)}, but {list(known.shape)} in the model's file{without}")
        settled.append(tensor)
    return tuple(settled)
