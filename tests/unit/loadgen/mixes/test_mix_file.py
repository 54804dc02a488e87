from pathlib import Path

import pytest

from sluice.loadgen.mixes.mix_file import read_mix
from sluice.models.errors import ConfigError

MIX = """
streams:
  - {pipeline: digits-cascade, share: 3, slo_ms: 50}
  - model: digits-wide
    name: batch
    slo_ms: 2s
    rows: 8
    priority: 2
    min_accuracy: 0.9
    max_cost: 0.001
    start_after_ms: 2s
    samples: {file: data/digits.npz, inputs: {x: images}, labels: digits, subset: test}
"""


def write(directory: Path, text: str) -> str:
    path = directory / "mix.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_mix_is_read(tmp_path: Path) -> None:
    mix = read_mix(write(tmp_path, MIX))
    first, second = mix.streams
    assert (first.name, first.model, first.share, first.slo_ms, first.rows) == ("digits-cascade",) * 2 + (3, 50, 1)
    assert (second.name, second.model, second.share, second.slo_ms) == ("batch", "digits-wide", 1, 2000)
    assert (second.rows, second.priority) == (8, 2)
    assert (second.min_accuracy, second.max_cost, second.start_after_ms) == (0.9, 0.001, 2000)
    assert (first.min_accuracy, first.max_cost, first.start_after_ms) == (0, None, 0)
    assert first.samples.file == "random"
    assert second.samples.file == str(tmp_path / "data" / "digits.npz")
    assert (second.samples.inputs, second.samples.labels, second.samples.subset) == ({"x": "images"}, "digits", "test")


def test_shares_may_fall_with_the_rank(tmp_path: Path) -> None:
    mix = read_mix(write(tmp_path, "zipf: 1\nstreams: [{model: a}, {model: b}, {model: c}]\n"))
    assert [stream.share for stream in mix.streams] == pytest.approx([6 / 11, 3 / 11, 2 / 11])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"mix\.yaml: .*streams"),
        ("streams: []\n", r"mix\.yaml: expected 1 to 1024 streams, got 0"),
        ("streams:\n  - {model: a}\n  - {modle: b}\n", r"mix\.yaml:3: .*modle"),
        (
            "streams:\n  - {model: a}\n  - {model: b, share: 0}\n",
            r"mix\.yaml:3: .*share: expected a number above 0, got 0",
        ),
        ("streams:\n  - {model: a, rows: 0}\n", r"mix\.yaml:2: .*rows: expected at least 1, got 0"),
        ("streams:\n  - {model: a, slo_ms: -5}\n", r"mix\.yaml:2: .*slo_ms: expected a positive number, got -5"),
        ("streams:\n  - {model: a, priority: -1}\n", r"mix\.yaml:2: .*priority: expected a whole number of at least 0"),
        ("streams:\n  - {model: a, min_accuracy: 98}\n", r"mix\.yaml:2: .*min_accuracy: expected a number from 0 to 1"),
        (
            "streams:\n  - {model: a, max_cost: -1}\n",
            r"mix\.yaml:2: .*max_cost: expected a finite number of at least 0",
        ),
        (
            "streams:\n  - {model: a, start_after_ms: 61s}\n",
            r"mix\.yaml:2: .*start_after_ms: expected a number of milliseconds from 0 to 60000, got 61000",
        ),
        ("streams:\n  - {model: a, pipeline: b}\n", r"mix\.yaml:2: .*expected either model or pipeline"),
        ("streams:\n  - {share: 2}\n", r"mix\.yaml:2: .*expected either model or pipeline"),
        ("streams:\n  - {model: a, slo_ms: soon}\n", r"mix\.yaml:2: .*slo_ms: .*expected a number of milliseconds"),
        ("streams:\n  - {model: a}\n  - {model: a}\n", r"two streams are called 'a'; expected different names"),
        ("zipf: -1\nstreams: [{model: a}]\n", r"mix\.yaml:1: zipf: expected an exponent of at least 0, got -1"),
        (
            "zipf: 1\nstreams:\n  - {model: a}\n  - {model: b, share: 2}\n",
            r"mix\.yaml:4: .*expected no share beside zipf",
        ),
        ("streams: [\n", r"mix\.yaml:2: "),
    ],
)
def test_what_is_no_mix_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_mix(write(tmp_path, text))


def test_a_mix_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--mix: .*missing\.yaml: cannot be read: No such file"):
        read_mix(str(tmp_path / "missing.yaml"))
