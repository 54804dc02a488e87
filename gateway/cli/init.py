"""`sluice init`: writes a model repository from one or two model files, of two as a cascade."""

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.gateway.cli.local_path import local_path
from sluice.gateway.cli.progress import progress
from sluice.models.command_line import quantity
from sluice.models.errors import ConfigError

if TYPE_CHECKING:
    from sluice.models.backends.base import Backend
    from sluice.models.pipelines.cascade import Cascade
    from sluice.models.repository.scan import ModelEntry
    from sluice.models.tensors.arrays import Array

REQUEST_FILE = "request.json"
"""The file with the example of a request, if it is too long for a command line."""
_NEAR_ONE = 0.01
"""The largest difference from 1 of the sum of probabilities."""
_INLINE_CHARACTERS = 400
_FILE_STEM = "model"
"""The name of model files in repositories, which says nothing about the model."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_init)
    add = parser.add_argument
    add("directory", type=local_path, metavar="DIR", help="the new repository: a directory that is not there, or empty")
    add("small", type=local_path, metavar="MODEL", help="a model file, such as mlp.onnx")
    add(
        "large",
        type=local_path,
        nargs="?",
        metavar="LARGE",
        help="a second one, which a cascade runs only for the rows that the first is not sure of",
    )
    add("--name", default="cascade", metavar="NAME", help="name of the cascade (default %(default)s)")
    add("--output", metavar="NAME", help="output of MODEL that holds probabilities (default: the only one that does)")
    below = "a row whose largest probability is below this goes on to LARGE (default %(default)s)"
    add("--below", type=float, default=0.9, metavar="P", help=below)
    add("--slo-ms", type=quantity("_ms"), metavar="MS", help="the latency objective of the cascade")


class _Tried(NamedTuple):
    """A model file, and what its first run took and gave; arrays have one row, if they have rows."""

    path: Path
    name: str
    entry: "ModelEntry"
    backend: "Backend"
    inputs: Mapping[str, "Array"]
    outputs: Mapping[str, "Array"]


def _init(options: argparse.Namespace) -> int:
    from sluice.models.repository.create import NewModel, check_new, create_repository
    from sluice.models.repository.names import check_name

    check_new(options.directory)
    _check(options)
    paths = [options.small] if options.large is None else [options.small, options.large]
    models = []
    with progress(len(paths)) as shown:
        for path, name in zip(paths, _names(paths), strict=True):
            shown.begin(f"trying {path.name}")
            models.append(_try(path, name))
            shown.advance()
    texts: dict[str, str] = {}
    served, inputs, notes = models[0].name, models[0].inputs, []
    if len(models) > 1:
        check_name("--name", options.name)
        served = options.name
        cascade = _draft(options, models[0], models[1])
        inputs = _common_inputs(cascade, models[0], models[1])
        texts[f"{served}/pipeline.yaml"] = _text(options, cascade, models[0], models[1])
        notes += [f"not an output of the cascade, since only one of the models has it: {each}" for each in cascade.left]
        if _size(models[0].path) > _size(models[1].path):
            notes.append(
                f"{models[0].path} is larger than {models[1].path}, and runs for every row; is the order right?"
            )
    body = _body(models[0].entry, inputs)
    inline = body is not None and len(body) <= _INLINE_CHARACTERS
    if body is not None and not inline:
        texts[REQUEST_FILE] = f"{body}\n"
    new = [NewModel(each.name, each.path, _filename(each.path)) for each in models]
    written = create_repository(options.directory, new, texts)
    _check_written(options.directory)
    print(f"wrote {options.directory}:")
    for line in (*(f"  {place}" for place in written), *(f"note: {note}" for note in notes)):
        print(line)
    _print_next(options.directory, served, body if inline else None, has_file=REQUEST_FILE in texts)
    return 0


def _check(options: argparse.Namespace) -> None:
    if not 0 < options.below <= 1:
        raise ConfigError(f"--below: expected a probability above 0 and at most 1, got {options.below:g}")
    if options.large is None and options.output is not None:
        raise ConfigError("--output: expected two model files, of which a cascade is made; got one")
    if options.slo_ms is not None and not 0 < options.slo_ms < float("inf"):
        raise ConfigError(f"--slo-ms: expected milliseconds above 0, got {options.slo_ms:g}")


def _names(paths: list[Path]) -> list[str]:
    """Names for the models of files, all different."""
    from sluice.models.repository.names import check_name

    names = [_name(path) for path in paths]
    if len(set(names)) < len(names):
        names = [f"{name}-{size}" for name, size in zip(names, ("small", "large"), strict=True)]
    for path, name in zip(paths, names, strict=True):
        check_name(path, name)
    return names


def _name(path: Path) -> str:
    """The name of a file's model; a file that is in a repository already has that of its folder there."""
    from sluice.models.repository.scan import name_of_file

    name = name_of_file(path)
    parents = [each.name for each in path.absolute().parents if not each.name.isdecimal()]
    return parents[0] if name == _FILE_STEM and parents and parents[0] else name


def _filename(path: Path) -> str:
    from sluice.models.repository.scan import name_of_file

    return f"{_FILE_STEM}{path.name.removeprefix(name_of_file(path))}"


def _try(path: Path, name: str) -> _Tried:
    """Read a model, and run it as a worker does when it loads it. Raises ConfigError."""
    from sluice.models.backends.configured import load_backend, warm_up_shapes
    from sluice.models.backends.first_runs import FirstRuns
    from sluice.models.repository.scan import entry_of_file

    entry = entry_of_file(path)
    spec = entry.spec
    try:
        backend = load_backend(entry.backend, str(entry.path), 1, spec.config)
        runs = FirstRuns(backend, spec.batchable, warm_up_shapes(spec.config), spec.declared)
        inputs = runs.run(1).inputs
        outputs = {name: array.copy() for name, array in backend.run(inputs).items()}
    except Exception as error:  # a backend may raise anything
        raise ConfigError(f"{path}: cannot be run: {' '.join(str(error).split()) or type(error).__name__}") from error
    return _Tried(path, name, entry, backend, inputs, outputs)


def _size(path: Path) -> int:
    """The bytes of a model with its external weights."""
    from sluice.models.repository.create import NewModel

    return sum(each.stat().st_size for each in NewModel("", path, _FILE_STEM).files.values())


def _draft(options: argparse.Namespace, small: _Tried, large: _Tried) -> "Cascade":
    from sluice.models.pipelines.cascade import draft_cascade

    probabilities = _probabilities(small)
    places = str(small.path), str(large.path)
    return draft_cascade(small.entry.spec, large.entry.spec, places, probabilities, options.output)


def _probabilities(model: _Tried) -> dict[str, str]:
    """The outputs that are vectors: "" for those that held probabilities in the first run, else why not."""
    from sluice.models.pipelines.cascade import vectors

    found = {}
    for tensor in vectors(model.entry.spec.outputs):
        row = model.outputs[tensor.name][0].astype(float)
        total = float(row.sum())
        if row.min() < -_NEAR_ONE or row.max() > 1 + _NEAR_ONE:
            found[tensor.name] = f"has values from {row.min():.3g} to {row.max():.3g} for zeros"
        else:
            found[tensor.name] = "" if abs(total - 1) <= _NEAR_ONE else f"adds up to {total:.3g} for zeros"
    return found


def _text(options: argparse.Namespace, cascade: "Cascade", small: _Tried, large: _Tried) -> str:
    """The `pipeline.yaml`, which has passed the checks of a server."""
    import msgspec

    from sluice.models.pipelines.cascade import cascade_text
    from sluice.models.pipelines.check import check_pipeline
    from sluice.models.pipelines.file import decode_pipeline

    text = cascade_text(cascade, (small.name, large.name), options.below, options.slo_ms)
    path = str(options.directory / options.name / "pipeline.yaml")
    specs = [msgspec.structs.replace(each.entry.spec, name=each.name) for each in (small, large)]
    check_pipeline(decode_pipeline(text, path), {each.key: each for each in specs}, name=options.name, path=path)
    return text


def _common_inputs(cascade: "Cascade", small: _Tried, large: _Tried) -> Mapping[str, "Array"]:
    """Inputs of the cascade that both models take. Raises ConfigError if none of those that were tried is such."""
    from sluice.models.errors import BackendError

    back = {theirs: ours for ours, theirs in cascade.inputs.items()}
    reason = ""
    for inputs in (
        small.inputs,
        {name: large.inputs.get(back.get(name, ""), array) for name, array in small.inputs.items()},
    ):
        try:
            small.backend.run(inputs)
            large.backend.run({ours: inputs[theirs] for ours, theirs in cascade.inputs.items()})
        except BackendError as error:
            reason = " ".join(str(error).split())
        else:
            return inputs
    raise ConfigError(f"{large.path}: it takes no input that {small.path} takes as well, of zeros: {reason}")


def _body(entry: "ModelEntry", inputs: Mapping[str, "Array"]) -> str | None:
    """The body of a request of one row, of zeros, in JSON; None if JSON has no numbers for a datatype."""
    from sluice.models.tensors.spec import RAW_ONLY

    datatypes = {tensor.name: tensor.datatype for tensor in entry.spec.inputs}
    if RAW_ONLY & set(datatypes.values()):
        return None
    tensors: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatypes[name],
            "data": [_json_value(each) for each in array.ravel().tolist()],
        }
        for name, array in inputs.items()
    ]
    return json.dumps({"inputs": tensors}, separators=(",", ":"))


def _json_value(element: object) -> object:
    """An element of zeros in the shortest JSON."""
    match element:
        case bytes():
            return element.decode()
        case float():
            return int(element)
        case _:
            return element


def _check_written(directory: Path) -> None:
    """Read the new repository as a server does. Raises ConfigError."""
    from sluice.gateway.config.server_config import ServerConfig
    from sluice.gateway.deployment.read import read_models

    for broken in read_models([directory], [], ServerConfig()).broken:
        raise ConfigError(broken.reason)


def _print_next(directory: Path, served: str, body: str | None, *, has_file: bool) -> None:
    place = shlex.quote(str(directory))
    data = None if body is None else shlex.quote(body)
    if has_file:
        data = shlex.quote(f"@{directory / REQUEST_FILE}")
    print("\nserve it:")
    print(f"  sluice serve {place}")
    print("\nsend a request, in another terminal:")
    print(f"  sluice infer {served} --zeros")
    if data is not None:
        print(f"  curl -s localhost:8000/v2/models/{served}/infer -d {data}")
    print("\nthen:")
    print("  sluice top")
    print(f"  sluice profile --repository {place}")
    print(f"  sluice plan {served} --repository {place} --rate 100")
