"""All packing policies, by name."""

from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.cbp import CorrelationBased
from sluice.mps.packing.exclusive import Exclusive
from sluice.mps.packing.first_fit_decreasing import FirstFitDecreasing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.pp import PeakPrediction

AnyPolicy = Exclusive | BestFit | FirstFitDecreasing | CorrelationBased | PeakPrediction | PeakSafe

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
