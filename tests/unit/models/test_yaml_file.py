import pytest

from sluice.models.errors import ConfigError
from sluice.models.yaml_file import load_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("012", 12),
        ("0o17", 15),
        ("0x1f", 31),
        ("1e3", 1000.0),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("~", None),
        ("", None),
        ("-3", -3),
        (".5", 0.5),
    ],
)
def test_plain_values_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    assert load_yaml(f"key: {text}", "f").value == {"key": value}


def test_a_byte_order_mark_is_passed_over() -> None:
    assert load_yaml("\ufeffa: 1\r\nb: 2\r\n", "f").value == {"a": 1, "b": 2}


def test_every_place_has_its_line() -> None:
    lines = load_yaml("a:\n  b.c: 1\n  d:\n  - 2\n  - e: {f: 3,\n      g: 4}\n", "f").lines
    places = ("a", "a.b.c", "a.d[1].e", "a.d.1.e.g", "a.d[1].e.missing", "missing", "")
    assert [lines.line(place) for place in places] == [1, 2, 5, 6, 5, 1, 1]


def test_the_line_is_that_of_the_key_that_the_error_names() -> None:
    lines = load_yaml("limits:\n  memory_mb: 1\n  queue_requests: 0\n", "f").lines
    assert lines.place("f", "limits", "queue_requests: expected at least 1") == "f:3: limits:"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "f:3: not YAML: 'a' twice, first in line 1"),
        ("a:\n\tb: 1", "f:2: not YAML: a tab in the indentation or before a value; expected blanks"),
        ("a: 1\n  b: 2", "f:2: not YAML: a key is not expected here; check the indentation of this line and"),
        ("a:\n    b: 1\n  c: 2", "f:3: not YAML: the indentation of this line matches no line above it"),
        ("a: &x [*x]", "f:1: not YAML: an alias refers to itself"),
        ("a: *x", "f:1: not YAML: found undefined alias 'x'"),
        ("a: 1\n--- b", "f:2: not YAML: expected a single document"),
        ("[" * 5000, "f: not YAML: nested too deeply"),
        ("a: " + "9" * 5000, "f:1: not YAML: not an integer of at most 100 digits: '9999"),
        ("a: 0x" + "f" * 5000, "f:1: not YAML: not an integer of at most 100 digits: '0xff"),
        ("a: 1\nb: !!int x", "f:2: not YAML: not of type int: 'x'"),
        ("a: 1\nb: !!int ''", "f:2: not YAML: not of type int: ''"),
        ("a: 1\nb: !!bool maybe", "f:2: not YAML: not of type bool: 'maybe'"),
        ("a: 1\nb: !!float x", "f:2: not YAML: not of type float: 'x'"),
        ("a: 1\nb: !!float ''", "f:2: not YAML: not of type float: ''"),
        ("a: 1\nb: !!timestamp x", "f:2: not YAML: not of type timestamp: 'x'"),
        ("a: 1\nb: !!timestamp 2026-13-01", "f:2: not YAML: not of type timestamp: '2026-13-01'"),
        ("a: \x00", "f: not YAML: special characters are not allowed"),
    ],
)
def test_what_is_no_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_yaml(text, "f")
    assert str(refused.value).startswith(message)


def test_aliases_cannot_make_a_document_huge() -> None:
    doubling = "\n".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]" for n in range(30))
    with pytest.raises(ConfigError, match="with its aliases written out the document has more than 100000 values"):
        load_yaml(f"a0: &a0 [1, 1]\n{doubling}", "f")


def test_an_alias_and_a_merge_key_may_be_used() -> None:
    text = "base: &base {cores: [0], slowdown: 2}\nother:\n  <<: *base\n  slowdown: 3\n"
    assert load_yaml(text, "f").value == {
        "base": {"cores": [0], "slowdown": 2},
        "other": {"cores": [0], "slowdown": 3},
    }


def test_an_error_that_quotes_a_long_text_is_cut() -> None:
    lines = load_yaml("a:\n  b: 1\n", "f").lines
    assert str(lines.error("f", "a.b", "expected 2")) == "f:2: a.b: expected 2"
    assert str(lines.error("f", "a.b", "x" * 5000)) == f"f:2: a.b: {'x' * 2000}"
