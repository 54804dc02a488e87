import enum
from typing import Literal

import msgspec
import pytest

from sluice.models.conversion import convert
from sluice.models.errors import ConfigError
from sluice.models.units import unit_of
from sluice.models.yaml_file import load_yaml


class Mode(enum.StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory_mb: float = 1
    arena_mb: int = 1
    timeout_s: float = 1


class Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    strict: bool = False
    level: str = ""
    mode: Mode = Mode.FAST
    slo_ms: float | None = None
    max_bytes: int = 0
    front_ends: int | Literal["auto"] = 0
    min_bytes_per_s: int = 0
    inner: Inner = Inner()
    each: dict[str, Inner] = {}
    times_us: tuple[float, ...] = ()


def read(text: str) -> Form:
    value, lines = load_yaml(text, "f")
    return convert(value, Form, "f", lines=lines)


@pytest.mark.parametrize(("word", "value"), [("yes", True), ("On", True), ("off", False), ("no", False)])
def test_words_are_booleans_only_where_the_setting_is_one(word: str, value: bool) -> None:
    form = read(f"strict: {word}\nlevel: {word}")
    assert (form.strict, form.level) == (value, word)


def test_numbers_may_have_units() -> None:
    form = read(
        "slo_ms: 2s\nmax_bytes: 1.5KiB\ntimes_us: [1ms, 2, 3us]\ninner: {memory_mb: 1.5GiB, arena_mb: 2GiB}\n"
        "each: {slo_s: {timeout_s: 500ms}}\nfront_ends: auto"
    )
    assert form == Form(
        slo_ms=2000,
        max_bytes=1536,
        times_us=(1000, 2, 3),
        inner=Inner(memory_mb=1536, arena_mb=2048),
        each={"slo_s": Inner(timeout_s=0.5)},
        front_ends="auto",
    )


def test_plain_numbers_keep_their_meaning() -> None:
    assert read("slo_ms: 50\nmax_bytes: 1_000\ninner: {memory_mb: '3'}") == Form(
        slo_ms=50, max_bytes=1000, inner=Inner(memory_mb=3)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stric: true", "f:1: Object contains unknown field `stric`; expected strict, level, "),
        ("stric: true", "; did you mean 'strict'?"),
        ("level: a\nmode: fats", "f:2: mode: Invalid enum value 'fats'; expected fast or slow; did you mean 'fast'?"),
        ("level: a\nmemory_mb: 3", "f:2: Object contains unknown field `memory_mb`; expected strict"),
        ("level: a\nmemory_mb: 3", "; did you mean 'inner.memory_mb'? Check the indentation"),
        ("slo_ms: 50MiB", "f:1: slo_ms: expected a number of milliseconds, or one with its unit (ns, us, µs, ms, s, "),
        ("max_bytes: 3MB", "got '3MB'; did you mean '3MiB'?"),
        ("max_bytes: 1e", "got '1e'"),
        ("max_bytes: 0.3B", "f:1: max_bytes: expected a whole number of bytes, got '0.3B' (0.3)"),
        ("inner:\n  arena_mb: 100KiB", "f:2: inner.arena_mb: expected a whole number of MiB, got '100KiB'"),
        ("slo_ms: soon", "f:1: slo_ms: Expected `float | null`, got `str`; expected a number of milliseconds, or"),
        ("each:\n  a:\n    timeout_s: [1]", "f:3: each.a.timeout_s: Expected `float`, got `array`"),
        ("min_bytes_per_s: 1KiB", "f:1: min_bytes_per_s: Expected `int`, got `str`"),
        ("strict: maybe", "f:1: strict: Expected `bool`, got `str`"),
    ],
)
def test_an_error_names_line_and_place_and_what_was_meant(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("slo_ms", "0.5 s", 500),
        ("slo_ms", "2min", 120_000),
        ("hand_off_us", "1ms", 1000),
        ("poll_s", "1h", 3600),
        ("poll_s", "250ms", 0.25),
        ("load_mib", "1GiB", 1024),
        ("memory_mb", "512KiB", 0.5),
        ("max_body_bytes", "64", 64),
    ],
)
def test_the_unit_is_that_of_the_name(key: str, text: str, number: float) -> None:
    unit = unit_of(key)
    assert unit is not None
    assert unit.number(text) == number


def test_a_name_without_a_unit_has_none() -> None:
    assert unit_of("rate") is unit_of("min_bytes_per_s") is None
