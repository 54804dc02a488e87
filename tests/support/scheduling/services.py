"""Simulated services: the machine under a simulator, in tests and benchmarks."""

from sluice.batcher.interface.decisions import CombineOutputs, DispatchBatch


class WithoutConfidences:
    """A base of simulated services whose models report no confidences; a subclass gives the time of a batch."""

    def batch_confidences(self, batch: DispatchBatch) -> tuple[tuple[float, ...], ...]:
        return ()

    def combined_confidences(self, combination: CombineOutputs) -> tuple[tuple[float, ...], ...]:
        return ()
