"""All packing policies, by name."""

import enum

from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.cbp import CorrelationBased
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.first_fit_decreasing import FirstFitDecreasing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.pp import PeakPrediction

AnyPolicy = Exclusive | BestFit | FirstFitDecreasing | CorrelationBased | PeakPrediction | PeakSafe


class PackingName(enum.StrEnum):
    """The names of the policies."""

    EXCLUSIVE = "exclusive"
    BEST_FIT = "best_fit"
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    CBP = "cbp"
    PP = "pp"
    PEAK_SAFE = "peak_safe"


POLICIES: dict[str, AnyPolicy] = {
    "exclusive": Exclusive(),
    "best_fit": BestFit(),
    "first_fit_decreasing": FirstFitDecreasing(),
    "cbp": CorrelationBased(),
    "pp": PeakPrediction(),
    "peak_safe": PeakSafe(),
}
"""Each policy with its defaults."""
DEFAULT = "peak_safe"
