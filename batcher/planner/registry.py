"""The path planners by name: every file of this room, or of `baselines`, that calls `path_planner` is found."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from sluice.batcher import planner
from sluice.batcher.extensions import import_modules
from sluice.batcher.interface.planner_config import PlannerConfig
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem
from sluice.models.errors import ConfigError

DEFAULT = "exact"
"""The planner that is asked unless another one is named."""

_T = TypeVar("_T", bound=Callable[..., Any])
QueueTimes = Callable[[Problem, Path], Sequence[int]]
"""For each stage of a path, how long (ns) the first row of a batch waits for it to fill where the path is kept to."""


def waits_planned(problem: Problem, path: Path) -> list[int]:
    """The part of each stage's latency that its batch does not run: what the plan expects to wait."""
    return [
        max(int(stage.latency_ns[choice]) - stage.options[choice].service_ns, 0)
        if stage.options[choice].batch > 1
        else 0
        for stage, choice in zip(problem.stages, path.choices, strict=True)
    ]


class NoSettings(msgspec.Struct, frozen=True):
    """The settings of a planner that has none."""


class RegisteredPlanner(NamedTuple):
    """A planner with one line on what it finds; `make`, of `module`, builds it from an instance of `settings`.

    `queue_times` are those of its paths where stages keep to them. By name, `work` has the settings that bound its
    search, and how much of each takes about a millisecond on one core.
    """

    name: str
    description: str
    settings: type[msgspec.Struct]
    make: Callable[[Any], PathPlanner]
    module: str
    queue_times: QueueTimes = waits_planned
    work: Mapping[str, float] = {}


_registered: dict[str, RegisteredPlanner] = {}


def path_planner(
    name: str,
    description: str,
    settings: type[msgspec.Struct] | None = None,
    *,
    queue_times: QueueTimes = waits_planned,
    work: Mapping[str, float] | None = None,
) -> Callable[[_T], _T]:
    """Register the function below it: a `PathPlanner`, or with `settings` a function that makes one from them.

    The others are as in `RegisteredPlanner`.
    """

    def register(function: _T) -> _T:
        _check_function(name, function, settings)
        if (other := _registered.get(name)) is not None:
            raise ConfigError(f"planner {name}: registered by {other.module} and by {function.__module__}")
        make: Callable[[Any], PathPlanner] = function if settings is not None else lambda _: function
        _registered[name] = RegisteredPlanner(
            name,
            description,
            settings or NoSettings,
            make,
            function.__module__,
            queue_times,
            work or {},
        )
        return function

    return register


def _check_function(name: str, function: Callable[..., Any], settings: type[msgspec.Struct] | None) -> None:
    """Raise ConfigError for a planner that is registered without its settings, or with settings that it has not."""
    signature = inspect.signature(function)
    try:
        signature.bind(None, count=1)
    except TypeError:
        takes_problem = False
    else:
        takes_problem = True
    if settings is None and not takes_problem:
        raise ConfigError(
            f"planner {name}: {function.__module__}: a function of {signature} without settings; expected "
            "(problem, count), or the settings as third argument of path_planner"
        )
    if settings is not None and takes_problem:
        raise ConfigError(
            f"planner {name}: {function.__module__}: a function of {signature} with settings; expected (settings), "
            "which returns a function of (problem, count)"
        )


@cache
def path_planners() -> Mapping[str, RegisteredPlanner]:
    """All planners, by name and in the order of their names."""
    import_modules(planner)
    return dict(sorted(_registered.items()))


def planner_named(name: str, settings: Mapping[str, object] | None = None) -> PathPlanner:
    """The planner of that name, with these settings; ConfigError where either is wrong.

    Values may be text, as on a command line.
    """
    planners = path_planners()
    if name not in planners:
        raise ConfigError(f"planner {name}: expected one of {', '.join(planners)}")
    settings = settings or {}
    form = planners[name].settings
    if unknown := [key for key in settings if key not in form.__struct_fields__]:
        expected = ", ".join(form.__struct_fields__) or "none"
        raise ConfigError(f"planner {name}: unknown setting {unknown[0]}; expected {expected}")
    try:
        return planners[name].make(msgspec.convert(settings, form, strict=False))
    except msgspec.ValidationError as error:
        raise ConfigError(f"planner {name}: {error}") from error


def planner_of(config: PlannerConfig) -> PathPlanner:
    """The planner that a scheduler goes by, with its seed and the bounds of its search; ConfigError for others."""
    known = path_planners().get(config.name)
    settings: dict[str, object] = {}
    if known is not None:
        settings = {key: max(round(each * config.limit_ms), 1) for key, each in known.work.items()}
        if "seed" in known.settings.__struct_fields__:
            settings["seed"] = config.seed
    return planner_named(config.name, settings)
