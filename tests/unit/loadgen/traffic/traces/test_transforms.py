from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.traffic.traces.trace import ArrivalTrace, Labels
from sluice.loadgen.traffic.traces.trace_file import read_trace_file, write_trace_file
from sluice.loadgen.traffic.traces.transforms import (
    FunctionMapping,
    mapped,
    rate_scaled,
    refitted,
    sliced,
    time_scaled,
)
from sluice.models.errors import ConfigError

RNG = np.random.default_rng
STRIPE = FunctionMapping.STRIPE


def functions(names: str) -> ArrivalTrace:
    """One arrival a second, of the functions with these letters."""
    used = {name: number for number, name in enumerate(dict.fromkeys(names))}
    labels = Labels(tuple(used), np.array([used[name] for name in names], np.int32))
    return ArrivalTrace(np.arange(len(names), dtype=np.float64), labels, size=np.arange(len(names)))


def models(trace: ArrivalTrace) -> list[str]:
    assert trace.model is not None
    return [trace.model.names[each] for each in trace.model.index]


def test_a_slice_starts_at_zero_and_keeps_what_belongs_to_its_arrivals() -> None:
    part = sliced(functions("abcab"), 1.5, 4.0)
    assert part.t_s.tolist() == [0.5, 1.5]
    assert models(part) == ["c", "a"]
    assert part.model is not None
    assert part.model.names == ("a", "c")
    assert part.size is not None
    assert part.size.tolist() == [2, 3]


def test_a_trace_at_half_its_times_is_twice_as_fast() -> None:
    assert time_scaled(functions("abc"), 0.5).t_s.tolist() == [0, 0.5, 1]


def test_thinning_keeps_each_arrival_with_equal_chance() -> None:
    trace = ArrivalTrace(np.arange(100_000, dtype=np.float64))
    thinned = rate_scaled(trace, 0.3, RNG(1))
    assert len(thinned) == pytest.approx(30_000, abs=4 * 145)
    gaps = np.diff(thinned.t_s)
    # Of equal gaps it makes geometric ones.
    assert gaps.std() / gaps.mean() == pytest.approx(0.7**0.5, rel=0.02)


def test_replication_puts_copies_before_the_next_arrival() -> None:
    copied = rate_scaled(functions("ab" * 5000), 2.5, RNG(1))
    assert len(copied) == pytest.approx(25_000, abs=200)
    # The last arrival has no next one, and its copies come with it.
    assert copied.t_s[-1] == 9999.0
    assert models(copied) == ["ab"[int(t_s) % 2] for t_s in copied.t_s]
    originals = copied.t_s[copied.t_s % 1 == 0]
    assert np.unique(originals).tolist() == list(range(10_000))


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_a_refit_has_the_variation_that_was_asked_for_and_keeps_the_counts(cv: float) -> None:
    rng = RNG(3)
    trace = ArrivalTrace(np.sort(np.concatenate((rng.random(30_000) * 100, 100 + rng.random(10_000) * 100))))
    refit = refitted(trace, 100.0, cv, 1.0, RNG(4))
    assert np.bincount((refit.t_s // 100).astype(int)).tolist() == [30_000, 10_000]
    gaps = np.diff(refit.t_s[:30_000])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)


def test_a_refit_may_scale_the_variation_of_each_window() -> None:
    trace = ArrivalTrace(np.cumsum(-np.log(RNG(3).random(50_000))))
    gaps = np.diff(refitted(trace, 5000.0, None, 2.0, RNG(4)).t_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)


def test_windows_with_few_arrivals_stay_as_they_are() -> None:
    trace = ArrivalTrace(np.array([0.0, 1.0, 2.0, 10.0, 11.0]))
    assert refitted(trace, 5.0, 4.0, 1.0, RNG(4)).t_s.tolist() == trace.t_s.tolist()


def test_functions_are_divided_by_turns_or_in_blocks() -> None:
    trace = functions("dacbad")  # in the order of first arrivals: d, a, c, b
    assert models(mapped(trace, ["m", "n"], FunctionMapping.ROUND_ROBIN, RNG(0))) == list("mnmnnm")
    assert models(mapped(trace, ["m", "n"], FunctionMapping.STRIPE, RNG(0))) == list("mmnnmm")


def test_functions_are_divided_by_zipfs_law() -> None:
    trace = functions("".join(map(chr, range(1000, 12_000))))
    names, counts = np.unique(models(mapped(trace, ["m", "n", "o"], FunctionMapping.ZIPF, RNG(2))), return_counts=True)
    assert names.tolist() == ["m", "n", "o"]
    # Shares of 6, 3 and 2 elevenths.
    assert counts.tolist() == pytest.approx([6000, 3000, 2000], abs=4 * 53)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: sliced(t, 2, 1), "--from and --to: expected 0 <= from < to, got 2 and 1"),
        (lambda t: sliced(t, 7, 9), "no arrival from 7 to 9 s; the last is at 2 s"),
        (lambda t: time_scaled(t, 0), "--time-scale: expected a number above 0, got 0"),
        (lambda t: rate_scaled(t, float("nan"), RNG(0)), "--rate-scale: expected a number above 0, got nan"),
        (lambda t: rate_scaled(t, 1e-9, RNG(0)), "--rate-scale: no arrival of 3 is left"),
        (lambda t: rate_scaled(t, 1e9, RNG(0)), "--rate-scale: expected at most 5000000 arrivals"),
        (lambda t: refitted(t, 0, None, 1, RNG(0)), "--window: expected a positive number of seconds"),
        (lambda t: refitted(t, 1, 99, 1, RNG(0)), r"--cv: expected a number between 0\.01 and 20\.0"),
        (lambda t: refitted(t, 1, None, 0, RNG(0)), "--cv-scale: expected a number above 0"),
        (
            lambda t: mapped(t, ["a", "a"], FunctionMapping.STRIPE, RNG(0)),
            "--models: expected different names, got 'a,a'",
        ),
        (
            lambda t: mapped(ArrivalTrace(t.t_s), ["a"], FunctionMapping.STRIPE, RNG(0)),
            "--models: the trace names no functions",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        change(functions("abc"))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.csv")
    whole = ArrivalTrace(
        np.array([0.0, 0.25, 1.000000001]),
        Labels(("a,b", "c"), np.array([0, 1, 0], np.int32)),
        Labels(("", "x"), np.array([0, 1, 1], np.int32)),
        np.array([-1, 3, 4]),
        np.array([np.nan, 50.5, 20]),
    )
    write_trace_file(whole, path)
    assert Path(path).read_text() == (
        't_s,model,class,size,slo_ms\n0,"a,b",,,\n0.25,c,x,3,50.5\n1.000000001,"a,b",x,4,20\n'
    )
    read = read_trace_file(path)
    assert read.t_s.tolist() == whole.t_s.tolist()
    assert models(read) == ["a,b", "c", "a,b"]
    assert read.size is not None
    assert read.size.tolist() == [-1, 3, 4]
    write_trace_file(ArrivalTrace(np.array([0.0, 30.0])), path)
    assert Path(path).read_text() == "t_s\n0\n30\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing/trace\.csv: cannot be written: No such file"):
        write_trace_file(functions("ab"), str(tmp_path / "missing" / "trace.csv"))
