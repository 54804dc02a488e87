"""All packing policies, by name."""

from mps.packing.best_fit import BestFit
from mps.packing.cbp import CorrelationBased
from mps.packing.exclusive import Exclusive
from mps.packing.first_fit_decreasing import FirstFitDecreasing
from mps.packing.peak_safe import PeakSafe
from mps.packing.pp import PeakPrediction

AnyPolicy = Exclusive | BestFit | FirstFitDecreasing | CorrelationBased | PeakPrediction | PeakSafe

POLICIES: dict[str, AnyPolicy] = {
    "exclusive": Exclusive(),
    "best_fit": BestFit(),
    "first_fit_decreasing": FirstFitDecreasing(),
    "cbp": CorrelationBased(),
    "pp": PeakPrediction(),
    "peak_safe": PeakSafe(),
}
"""Each with its defaults."""
DEFAULT = "peak_safe"
