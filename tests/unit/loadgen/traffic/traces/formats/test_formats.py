from pathlib import Path

import numpy as np
import pytest

from sluice.loadgen.traffic.traces.formats.found import TraceFormat, format_of, import_trace, open_trace
from sluice.loadgen.traffic.traces.formats.options import ImportOptions, Spread
from sluice.loadgen.traffic.traces.trace import ArrivalTrace
from sluice.models.errors import ConfigError


def write(directory: Path, text: str) -> str:
    path = directory / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "times"),
    [
        pytest.param("0.5\n1\n2.25\n", [0, 0.5, 1.75], id="one column, no heading"),
        pytest.param("arrived\n3\n4", [0, 1], id="one column with a heading"),
        pytest.param("7,small\n9,large\n", [0, 2], id="no heading"),
        pytest.param("app,when_time\na1,10.5\nb2,11\n", [0, 0.5], id="a column called time"),
        pytest.param("timestamp_ms\n2000\n1000\n3000\n", [0, 1, 2], id="out of order, in milliseconds"),
        pytest.param("\n1\n\n2\n", [0, 1], id="empty lines"),
        pytest.param("\ufefftime\n1\n2\n", [0, 1], id="a byte order mark"),
        pytest.param(
            "TIMESTAMP,Tokens\n1970-01-01 00:00:01.5000000,4\n1970-01-01 00:01:00.25,3\n", [0, 58.75], id="timestamps"
        ),
        pytest.param("1970-01-01T02:00:00+02:00\n1970-01-01T00:00:09Z\n", [0, 9], id="time zones"),
    ],
)
def test_any_file_with_times_is_a_trace(tmp_path: Path, text: str, times: list[float]) -> None:
    path = write(tmp_path, text)
    assert format_of(path) == "times"
    assert open_trace(path).t_s.tolist() == times


def columns(trace: ArrivalTrace) -> dict[str, list[object]]:
    model, query_class = trace.model, trace.query_class
    return {
        "t_s": trace.t_s.round(6).tolist(),
        "model": [] if model is None else [model.names[each] for each in model.index],
        "class": [] if query_class is None else [query_class.names[each] for each in query_class.index],
        "size": [] if trace.size is None else trace.size.tolist(),
    }


FUNCTIONS_2021 = "app,func,end_timestamp,duration\na,f1,10.5,0.5\na,f2,57.0,56.0\nb,f1,12.0,0.0\n"
AZURE_LLM = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8"
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2.5,ChatGPT,472,18,490,Conversation log\n45,2,1.0,GPT-4,1087,230,1317,API log\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}\n'
)


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        pytest.param(
            FUNCTIONS_2021,
            "azure-functions-2021",
            # The call that ends last began first: at 1 s, against 10 and 12 s.
            {"t_s": [0, 9, 11], "model": ["f2", "f1", "f1"], "class": [], "size": []},
            id="a call starts at its end less its duration",
        ),
        pytest.param(
            AZURE_LLM, "azure-llm", {"t_s": [0, 0.052], "model": [], "class": [], "size": [4808, 3180]}, id="azure llm"
        ),
        pytest.param(
            BURSTGPT,
            "burstgpt",
            {
                "t_s": [0, 40],
                "model": ["ChatGPT", "GPT-4"],
                "class": ["Conversation log", "API log"],
                "size": [472, 1087],
            },
            id="burstgpt",
        ),
        pytest.param(
            MOONCAKE, "mooncake", {"t_s": [0, 3.053], "model": [], "class": [], "size": [6955, 6472]}, id="mooncake"
        ),
        pytest.param(
            "timestamp_ms,input_length,output_length\n0,6758,500\n1500,7322,490\n",
            "mooncake",
            {"t_s": [0, 1.5], "model": [], "class": [], "size": [6758, 7322]},
            id="mooncake as CSV",
        ),
        pytest.param(
            "t_s,model,class,size\n0.5,a,x,3\n2,b,,\n1,a,x,4\n",
            "trace",
            {"t_s": [0.5, 1, 2], "model": ["a", "a", "b"], "class": ["x", "x", ""], "size": [3, 4, -1]},
            id="the own format",
        ),
    ],
)
def test_a_published_format_is_known_by_its_heading(
    tmp_path: Path, text: str, found: str, expected: dict[str, list[object]]
) -> None:
    path = write(tmp_path, text)
    assert format_of(path) == found
    assert columns(open_trace(path)) == expected


FUNCTIONS_2019 = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f1,http,2,0,3\no,a,f2,timer,0,600,0\n"


def test_counts_a_minute_become_arrivals_inside_their_minute(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, FUNCTIONS_2019))
    found = columns(trace)
    assert np.bincount((trace.t_s // 60).astype(int)).tolist() == [2, 600, 3]
    assert found["model"].count("f2") == found["class"].count("timer") == 600
    # Uniform in the minute: the mean of 600 is 90 s, give or take four times 60 / sqrt(12 * 600).
    assert trace.t_s[2:602].mean() == pytest.approx(90, abs=2.83)


def test_counts_a_minute_may_be_the_means_of_a_poisson_process(tmp_path: Path) -> None:
    path = write(tmp_path, "HashOwner,HashApp,HashFunction,Trigger,1,2,3\no,a,f1,http,4000,0,1000\n")
    trace = import_trace(path, TraceFormat.AZURE_FUNCTIONS_2019, ImportOptions(Spread.POISSON, seed=3))
    first, second, third = np.bincount((trace.t_s // 60).astype(int)).tolist()
    assert (first, third) != (4000, 1000)
    assert [first, second, third] == pytest.approx([4000, 0, 1000], abs=4 * 63)
    gaps = np.diff(trace.t_s[trace.t_s < 60])
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("text", ["3 0 2\n", "3,0,2", "3\n0\n\n2\n", "3 0\n2"])
def test_counts_a_second_become_arrivals_inside_their_second(tmp_path: Path, text: str) -> None:
    trace = import_trace(write(tmp_path, text), TraceFormat.PER_SECOND_COUNTS, ImportOptions())
    assert np.bincount(trace.t_s.astype(int)).tolist() == [3, 0, 2]


def test_counts_in_one_long_line_are_read_in_pieces(tmp_path: Path) -> None:
    path = write(tmp_path, "1 0 " * 100_000)
    trace = import_trace(path, TraceFormat.PER_SECOND_COUNTS, ImportOptions())
    assert trace.t_s.astype(int).tolist() == list(range(0, 200_000, 2))


@pytest.mark.parametrize(
    ("text", "trace_format"),
    [("40000 20000", "per-second-counts"), ("".join(f"{each}\n" for each in range(60_000)), "times")],
)
def test_a_share_of_a_trace_is_kept(tmp_path: Path, text: str, trace_format: str) -> None:
    options = ImportOptions(keep=0.25, seed=1)
    trace = import_trace(write(tmp_path, text), TraceFormat(trace_format), options)
    # Four standard deviations of a binomial count.
    assert len(trace) == pytest.approx(15_000, abs=4 * 106)
    assert len(import_trace(write(tmp_path, text), TraceFormat(trace_format), options)) == len(trace)


@pytest.mark.parametrize("keep", [0.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="--keep: expected a share above 0 and at most 1"):
        ImportOptions(keep=keep)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"trace\.csv: no arrivals; expected at least one"),
        ("time\n4\nsoon\n", r"trace\.csv: line 3: expected a number or a timestamp, got 'soon'"),
        ("time\n4\nnan\n", r"line 3: expected a number or a timestamp, got 'nan'"),
        ("app,time\na,4\nb\n", r"line 3: expected a number or a timestamp, got nothing"),
        ("t_s,modle\n1,a\n", r"line 1: expected the columns t_s, model, class, size, slo_ms, .* got 't_s,modle'"),
        ("t_s,size\n1,2\n2,few\n", r"line 3: expected a whole number of at least 0 for size, got 'few'"),
        ("t_s,size\n1,-2\n", r"line 2: expected a whole number of at least 0 for size, got '-2'"),
        ("t_s\n-1\n", r"line 2: expected a number of at least 0 for t_s, got '-1'"),
        ("t_s,slo_ms\n1,0\n", r"line 2: expected a number of at least 1e-06 for slo_ms, got '0'"),
        (FUNCTIONS_2021 + "b,f1,12.0\n", r"line 5: expected a value for duration, got nothing"),
        (FUNCTIONS_2021 + "b,f1,12.0,-3\n", r"line 5: expected a number of at least 0 for duration, got '-3'"),
        (MOONCAKE + '{"timestamp": 1}\n', r"line 3: expected an object with timestamp and input_length, got .*missing"),
        (FUNCTIONS_2019 + "o,a,f3,http,1,two,0\n", r"line 4: .* whole number of at least 0 for minute 2, got 'two'"),
        (
            FUNCTIONS_2019 + "o,a,f3,http,1,9000000,0\n",
            r"line 4: expected at most 5000000 arrivals, got 9000001; keep a share of them with --keep",
        ),
        (
            "HashOwner,HashApp,HashFunction,Trigger,1,3\n",
            r"line 1: expected minutes from 1 to .* got 1, 3",
        ),
        ("time\n" + "9" * 1_100_000, r"line 2: expected at most 1048576 characters, got more"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_trace(write(tmp_path, text))


@pytest.mark.parametrize(
    ("trace_format", "message"),
    [
        ("burstgpt", "line 1: expected a heading with timestamp, model, request tokens, got no 'timestamp'"),
        ("per-second-counts", "line 1: expected a whole number of at least 0 for each second, got 'timestamp_ms'"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, trace_format: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        import_trace(write(tmp_path, "timestamp_ms\n5\n"), TraceFormat(trace_format), ImportOptions())


@pytest.mark.parametrize(("text", "line"), [("1 2\n3 x 4\n", 2), ("1\n" * 50_000 + "-3", 50_001)])
def test_a_count_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(ConfigError, match=f"line {line}: expected a whole number of at least 0"):
        import_trace(write(tmp_path, text), TraceFormat.PER_SECOND_COUNTS, ImportOptions())


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.csv: cannot be read: No such file"):
        open_trace(str(tmp_path / "missing.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_trace(str(tmp_path / "binary.csv"))


def test_one_time_has_no_rate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least two distinct times, got 2 arrivals"):
        _ = open_trace(write(tmp_path, "time\n4\n4\n")).mean_rate
