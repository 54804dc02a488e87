"""Aquatope: Bayesian optimisation of all stages' configurations at once, within a fixed number of trials.

Source: "AQUATOPE: QoS-and-Uncertainty-Aware Resource Management for Multi-stage Serverless Workflows" (ASPLOS'23) and
its public code: two independent Gaussian processes (cost, and latency over the objective) on the unit cube, expected
improvement under the constraint estimated with 32 samples, 10 random trials and then 20 rounds of 3, the best feasible
trial is the answer. Ours: the dimensions are those of `option_grid`; a Matern kernel whose length is the likeliest of
three, where the source fits all parameters; the acquisition is maximised over random points, some near the best, not by
gradients from restarts, and its three best points make a round; figures have no noise, so that no outliers are removed
and the incumbent is exact.
"""

import math
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from sluice.batcher.planner.baselines.option_grid import option_grid
from sluice.batcher.planner.problem.problem import Path, PathPlanner, Problem, check_problem, path_of
from sluice.batcher.planner.registry import path_planner

_DIMENSIONS = 3  # of a stage: share, batch size, alternative
_RANDOM_TRIALS = 10
_ROUNDS = 20
_TRIALS_A_ROUND = 3
_SAMPLES = 32
_CANDIDATES = 256  # anywhere, and as many near the best
_NEARBY = 0.1
_LENGTHS = (0.2, 0.5, 1.0)  # of the kernel, for one dimension
_JITTER = 1e-6

Floats = npt.NDArray[np.floating]


class AquatopeSettings(msgspec.Struct, frozen=True):
    """`seed` is that of the random trials."""

    seed: int = 0


@path_planner("aquatope", "the best of 70 trials of Bayesian optimisation", AquatopeSettings)
def aquatope(settings: AquatopeSettings) -> PathPlanner:
    """The planner with a generator of its own."""
    return partial(plan_aquatope, generator=np.random.default_rng(settings.seed))


def plan_aquatope(problem: Problem, count: int = 1, *, generator: np.random.Generator) -> list[Path]:
    """The best of the (at most 70) paths tried; the same generator state gives the same answer.

    ConfigError if a stage has only figures.
    """
    check_problem(problem)
    grids = [option_grid(stage) for stage in problem.stages]
    points = generator.random((_RANDOM_TRIALS, _DIMENSIONS * len(grids)))
    paths = [_path_at(problem, grids, point) for point in points]
    for _ in range(_ROUNDS):
        chosen = _most_promising(points, paths, problem.budget_ns, generator)
        points = np.concatenate((points, chosen))
        paths += [_path_at(problem, grids, point) for point in chosen]
    feasible = dict.fromkeys(path for path in paths if path.latency_ns <= problem.budget_ns)
    return sorted(feasible, key=lambda path: (path.cost, path.latency_ns, path.choices))[:count]


def _path_at(problem: Problem, grids: Sequence[npt.NDArray[np.int64]], point: Floats) -> Path:
    """The path at a point of the unit cube: for each stage a share, one of its batch sizes, one of the alternatives."""
    choices = []
    for grid, (share, batch, alternative) in zip(grids, point.reshape(-1, _DIMENSIONS), strict=True):
        batches = grid[int(share * len(grid))]
        offered = batches[(batches >= 0).any(axis=1)]
        row = offered[int(batch * len(offered))]
        options = row[row >= 0]
        choices.append(int(options[int(alternative * len(options))]))
    return path_of(problem, choices)


def _most_promising(points: Floats, paths: list[Path], budget_ns: int, generator: np.random.Generator) -> Floats:
    """The next points to try, (trials, dimensions): the most expected improvement on the best feasible cost.

    Before a trial was feasible, those expected to miss the objective by the least.
    """
    cost = np.array([path.cost for path in paths])
    excess = np.array([path.latency_ns - budget_ns for path in paths], np.float64)
    feasible_cost = np.where(excess <= 0, cost, np.inf)
    centre = points[int(np.argmin(feasible_cost if np.isfinite(feasible_cost).any() else excess))]
    near = centre + _NEARBY * generator.standard_normal((_CANDIDATES, len(centre)))
    candidates = np.concatenate((generator.random((_CANDIDATES, len(centre))), np.clip(near, 0.0, 1.0 - 1e-9)))
    draws = generator.standard_normal((2, _SAMPLES, 1))
    excesses = _GaussianProcess(points, excess).sample(candidates, draws[0])
    if np.isfinite(feasible_cost).any():
        costs = _GaussianProcess(points, cost).sample(candidates, draws[1])
        gain = np.maximum(feasible_cost.min() - costs, 0.0)
        score = np.mean(np.where(excesses <= 0, gain, 0.0), axis=0)
    else:
        score = -np.mean(np.maximum(excesses, 0.0), axis=0)
    chosen: Floats = candidates[np.argsort(-score, kind="stable")[:_TRIALS_A_ROUND]]
    return chosen


class _GaussianProcess:
    """A Gaussian process through values (points,) at points (points, dimensions) of the unit cube."""

    def __init__(self, points: Floats, values: Floats) -> None:
        self._points = points
        self._mean = float(values.mean())
        self._scale = float(values.std()) or 1.0
        scaled = (values - self._mean) / self._scale
        _, self._length, self._factor, self._weights = max(
            (self._fit(length * math.sqrt(points.shape[1]), scaled) for length in _LENGTHS), key=lambda fit: fit[0]
        )

    def sample(self, points: Floats, draws: Floats) -> Floats:
        """Values at other points, each by itself, for standard normal `draws` (samples, 1): (samples, points)."""
        cross = _matern(self._points, points, self._length)
        mean = cross.T @ self._weights
        reduced = np.linalg.solve(self._factor, cross)
        deviation = np.sqrt(np.maximum(1.0 - (reduced**2).sum(axis=0), 0.0))
        values: Floats = self._mean + self._scale * (mean + deviation * draws)
        return values

    def _fit(self, length: float, values: Floats) -> tuple[float, float, Floats, Floats]:
        """Log likelihood (up to a constant), the length, the kernel's Cholesky factor and its product with values."""
        factor = np.linalg.cholesky(_matern(self._points, self._points, length) + _JITTER * np.eye(len(values)))
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
        likelihood = -0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum())
        return likelihood, length, factor, weights


def _matern(left: Floats, right: Floats, length: float) -> Floats:
    """The Matern 5/2 kernel with variance 1."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    distance = np.sqrt(5.0 * np.maximum(squares, 0.0)) / length
    kernel: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return kernel
