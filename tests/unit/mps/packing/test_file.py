import pytest

from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S
from sluice.mps.packing.file import ProfileReference, decode_packing
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.pp import PeakPrediction
from sluice.mps.packing.tenant import Device, MemoryPhase, Tenant
from tests.support.located import without_line


def unmeasured(profiled: ProfileReference) -> int:
    raise AssertionError(f"{profiled} is not to be looked up")


def test_models_ask_for_their_peak_unless_they_say() -> None:
    file = decode_packing(
        """
devices: {gpu0: 16384}
models:
  a: {request_mib: 8192}
  b: {serve_mib: 3100, load_mib: 4200}
  c: {request_mib: 9000, serve_mib: 2700, usage_mib: [1, 2.5]}
""",
        "models.yaml",
        unmeasured,
    )
    assert file.devices == (Device("gpu0", 16384),)
    assert file.models == (
        Tenant("a", 8192),
        Tenant("b", 4200, (MemoryPhase(4200, NS_PER_S), MemoryPhase(3100))),
        Tenant("c", 9000, (MemoryPhase(2700),), (1.0, 2.5)),
    )
    assert (file.policy_name, file.policy) == ("peak_safe", PeakSafe())


def test_a_profile_tells_what_a_model_takes() -> None:
    text = "{devices: {gpu: 1}, models: {a: {load_mib: 7, profile: {file: a.json, kind: cpu1, batch: 8}}}}"
    asked: list[ProfileReference] = []

    def measured(profiled: ProfileReference) -> int:
        asked.append(profiled)
        return 5

    file = decode_packing(text, "f", measured)
    assert file.models == (Tenant("a", 7, (MemoryPhase(7, NS_PER_S), MemoryPhase(5))),)
    assert asked == [ProfileReference("a.json", "cpu1", 8)]


def test_a_policy_has_parameters() -> None:
    text = "{{devices: {{gpu: 1}}, models: {{a: {{request_mib: 1}}}}, policy: {}}}"
    assert decode_packing(text.format("pp"), "f", unmeasured).policy == PeakPrediction()
    assert decode_packing(text.format("{name: pp, percentile: 90}"), "f", unmeasured).policy == PeakPrediction(
        percentile=90
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{devices: {gpu: 1}, models: {a: {}}}",
            "f: models.a: expected `request_mib`, or one of `serve_mib` and `profile`, or both",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1, load_mib: 1}}}",
            "f: models.a: expected `serve_mib` or `profile` beside `load_mib`",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 0}}}",
            "f: models.a: expected request_mib of at least 1, got 0",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1, usage_mib: [.nan]}}}",
            "f: models.a: expected finite samples of at least 0 in usage_mib",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {serve_mib: 1, profile: {file: x, kind: cpu1, batch: 1}}}}",
            "f: models.a: expected either `serve_mib` or `profile`",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {profile: {file: x, kind: cpu1, batch: 0}}}}",
            "f: models.a.profile: expected batch of at least 1, got 0",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1, share: 1.2}}}",
            "f: models.a: expected share from 0 to 1, got 1.2",
        ),
        ("{devices: {gpu: 0}, models: {a: {request_mib: 1}}}", "f: devices.gpu: expected at least 1 MiB, got 0"),
        ("{devices: {}, models: {a: {request_mib: 1}}}", "f: expected at least one of `models` and one of `devices`"),
        (
            "{devices: {gpu: 1}, models: {a: {serve_mib: 1, usage_mib: [1]}, b: {serve_mib: 1, usage_mib: [1, 2]}}}",
            "f: models: expected usage_mib with the same number of samples for each, got 1 of a, 2 of b",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1}}, policy: tightest}",
            "f: policy: expected one of exclusive, best_fit, first_fit_decreasing, cbp, pp, peak_safe, "
            "or a mapping with it as `name` and its parameters",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1}}, policy: {name: cbp, percentile: 101}}",
            "f: policy.percentile: Expected `float` <= 100.0",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1}}, policy: {name: cbp, cov_max: .nan}}",
            "f: policy.cov_max: Expected `float` >= 0.0",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1}}, policy: {name: pp, autocorr_min: -2}}",
            "f: policy.autocorr_min: Expected `float` >= -1.0",
        ),
        (
            "{devices: {gpu: 1}, models: {a: {request_mib: 1}}, policy: {name: [pp]}}",
            "f: policy: expected one of exclusive, best_fit, first_fit_decreasing, cbp, pp, peak_safe, "
            "or a mapping with it as `name` and its parameters",
        ),
        ("", "f: Expected `object`, got `null`"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode_packing(text, "f", unmeasured)
    assert without_line(refused.value) == message
