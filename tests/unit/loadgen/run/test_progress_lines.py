"""The progress of client processes, as their lines tell it."""

import asyncio
from types import SimpleNamespace

import pytest

from sluice.loadgen.records.progress import QueryCounts
from sluice.loadgen.run.processes import _Shard


@pytest.mark.parametrize(
    ("line", "counts"), [(b"", (0, 0)), (b"12 7", (12, 7)), (b"a library says 3", (0, 0)), (b"1 x", (0, 0))]
)
def test_lines_that_are_not_of_the_progress_are_passed_over(line: bytes, counts: tuple[int, int]) -> None:
    shard = _Shard(None, SimpleNamespace(progress=line), None, asyncio.Event())  # type: ignore[arg-type]
    assert shard.counts == QueryCounts(*counts)
