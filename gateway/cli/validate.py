"""`sluice validate`: checks a model repository, or single model files, without serving."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.gateway.cli.local_path import local_path
from sluice.gateway.cli.progress import progress
from sluice.models.errors import ConfigError

if TYPE_CHECKING:
    from sluice.models.repository.scan import ModelEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(command=_validate)
    parser.add_argument("paths", nargs="+", type=local_path, metavar="PATH", help="a model repository, or model files")


def _validate(options: argparse.Namespace) -> int:
    from sluice.batcher.planner.registry import path_planners
    from sluice.batcher.policies.registry import batch_policies
    from sluice.gateway.config.server_config import ServerConfig
    from sluice.gateway.deployment.read import read_models
    from sluice.models.repository.names import SYSTEM_DIRECTORIES

    batch_policies()
    path_planners()
    paths: list[Path] = options.paths
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or directory; expected a model repository or model files")
        if path.is_dir() and len(paths) > 1:
            raise ConfigError(f"{path}: expected one model repository or only model files")
    directories, files = (paths, []) if paths[0].is_dir() else ([], paths)
    unloadable = set()
    with progress() as shown:
        shown.begin("reading")
        repository = read_models(directories, files, ServerConfig())
        for key, entry in repository.models.items():
            shown.begin(key, len(repository.models))
            if not _validate_model(key, entry):
                unloadable.add(key)
            shown.advance()
    for name, pipeline in repository.pipelines.items():
        stages = [stage.models for stage in pipeline.stages if stage.models]
        needed = sorted({model for models in stages if unloadable.issuperset(models) for model in models})
        print(f"{name}: cannot be served without {', '.join(needed)}" if needed else f"{name}: ok, pipeline")
    for broken in repository.broken:
        print(broken.reason)
    if not (repository.models or repository.pipelines or repository.broken):
        raise ConfigError(f"{paths[0]}: no models; expected NAME/VERSION/model.onnx")
    meant = [each for each in repository.broken if each.name not in SYSTEM_DIRECTORIES]
    return 1 if meant or unloadable else 0


def _validate_model(key: str, entry: "ModelEntry") -> bool:
    """Load a model and run it at its batch sizes, as a worker would, and print the outcome."""
    from sluice.models.backends.configured import load_backend, warm_up_runs, warm_up_shapes
    from sluice.models.backends.sequence_states import measurable, sequence_states
    from sluice.models.measuring.quick import measure_steps, run_to_end
    from sluice.models.spec import describe_batching

    config, spec = entry.spec.config, entry.spec
    try:
        loaded = load_backend(entry.backend, str(entry.path), 1, config)
        backend = measurable(loaded, sequence_states(config, str(entry.path)))
        run_to_end(warm_up_runs(backend, config))
        shapes = warm_up_shapes(config)
        run_to_end(measure_steps(backend, spec.batchable, spec.menu, 1, shapes, declared=spec.declared))
    except Exception as error:  # a backend may raise anything
        print(f"{key}: cannot be loaded: {' '.join(str(error).split()) or type(error).__name__}")
        return False
    print("; ".join((f"{key}: ok, {describe_batching(spec.max_batch_size, spec.batching_note)}", *spec.notes)))
    return True
