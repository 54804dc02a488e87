"""Rows of a model: how many are queued or running, how many may be expected together, how large its batches are."""

from sluice.batcher.state import ModelState

TYPICAL_WEIGHT = 0.1
"""Weight of one batch in the smoothed number of rows of a batch."""
PEAK_DECAY = 0.9
"""The peak of outstanding rows falls by this factor with every batch."""


def enqueued(model: ModelState, rows: int) -> None:
    """Count rows that wait from now on."""
    model.outstanding = outstanding = model.outstanding + rows
    if outstanding > model.peak_rows:
        model.peak_rows = outstanding


def waits_again(model: ModelState, rows: int) -> None:
    """Count rows that were taken off and wait or run again, which says nothing about arrivals."""
    model.outstanding += rows


def gone(model: ModelState, rows: int) -> None:
    """Count rows that no longer wait or run."""
    model.outstanding -= rows


def dispatched(model: ModelState, rows: int, now_ns: int) -> None:
    """Note a batch of `rows` rows, which are outstanding already."""
    model.peak_rows = max(model.outstanding, model.peak_rows * PEAK_DECAY)
    model.typical_rows += TYPICAL_WEIGHT * (rows - model.typical_rows)
    model.batches += 1
    model.last_used_ns = now_ns


def loaded(model: ModelState, now_ns: int) -> None:
    """Note that the model was loaded, which counts as use."""
    model.last_used_ns = max(model.last_used_ns, now_ns)
