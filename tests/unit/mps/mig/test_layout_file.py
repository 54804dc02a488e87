import pytest

from sluice.models.errors import ConfigError, InfeasibleLayout
from sluice.mps.mig.desired import GpuState, plan_gpu
from sluice.mps.mig.geometry import GEOMETRIES
from sluice.mps.mig.layout_file import decode_layouts
from sluice.mps.mig.placements import largest_first, parse_placement
from tests.support.located import without_line

H100 = GEOMETRIES["H100-80"]


def gpu_file(*lines: str) -> str:
    return "\n".join(["gpus:", "  - device: 0", *(f"    {line}" for line in lines)])


def test_instances_are_counted_or_listed() -> None:
    counted = decode_layouts(gpu_file("instances: {3g.40gb: 1, 1g: 2}"), "gpus.yaml")
    listed = decode_layouts(gpu_file("instances: [3g, 1g.10gb, 1g]"), "gpus.yaml")
    assert counted.wanted(0, H100) == listed.wanted(0, H100)
    assert [str(each) for each in counted.wanted(0, H100)] == ["3g.40gb", "1g.10gb", "1g.10gb"]


def test_places_may_be_fixed() -> None:
    file = decode_layouts(gpu_file("instances: [3g@0, 1g]"), "gpus.yaml")
    assert [str(each) for each in file.wanted(0, H100)] == ["3g.40gb@0", "1g.10gb"]


def test_what_is_there_has_places_and_users() -> None:
    file = decode_layouts(gpu_file("instances: [3g@0, 1g@6]", "users: {1g.10gb@6: [triton (pid 7)]}"), "now.yaml")
    assert file.present(0, H100) == {
        parse_placement(H100, "3g@0"): (),
        parse_placement(H100, "1g@6"): ("triton (pid 7)",),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus: []", "gpus.yaml: gpus: expected at least one GPU"),
        ("gpu: 1", "gpus.yaml: Object contains unknown field `gpu`; expected gpus"),
        ("gpus: [{}, {}]", "gpus.yaml: gpus.1.device: 0 is given twice"),
        ("[", "gpus.yaml: not YAML: "),
        (
            gpu_file("instance: {}"),
            "gpus.yaml: gpus.0: Object contains unknown field `instance`; expected device, gpu, mig, instances, ",
        ),
        (gpu_file("instances: {1g: 9}"), "gpus.yaml: gpus.0: expected 1 to 8 of 1g, got 9"),
        (gpu_file("instances: {1g: many}"), "gpus.yaml: gpus.0.instances.1g: Expected `int`, got `str`"),
        (
            gpu_file("gpu: T4"),
            "gpus.yaml: gpus.0: gpu 'T4': unknown GPU; expected one of A30, A100-40, A100-80, H100-80, ",
        ),
        (
            gpu_file("mig: false", "instances: [1g]"),
            "gpus.yaml: gpus.0: a GPU with `mig: false` is whole: expected no `instances` and no `demands`",
        ),
        (
            gpu_file("instances: [1g]", "demands: {m: {rate: 1, rates: {1g: 1}}}"),
            "gpus.yaml: gpus.0: expected either `instances` or `demands`, which choose them",
        ),
        (
            gpu_file("demands: {m: {rate: 0, rates: {1g: 1}}}"),
            "gpus.yaml: gpus.0: demands.m: expected a finite rate ",
        ),
        (
            gpu_file("demands: {m: {rate: 1, rates: {}}}"),
            "gpus.yaml: gpus.0: demands.m: expected finite rates above 0",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_reported_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode_layouts(text, "gpus.yaml")
    assert without_line(refused.value).startswith(reason)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "instances: {3g.20gb: 2}",
            "gpus.yaml: gpus.0.instances: '3g.20gb' is not a profile of H100-80; expected one of 7g.80gb, 4g.40gb, "
            "3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me",
        ),
        (
            "instances: [3g@2]",
            "gpus.yaml: gpus.0.instances: '3g@2': expected 3g.40gb@START, where START is one of 0, 4",
        ),
    ],
)
def test_what_the_gpu_does_not_have_is_reported_with_what_it_has(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode_layouts(gpu_file(line), "gpus.yaml").wanted(0, H100)
    assert without_line(refused.value) == reason


@pytest.mark.parametrize(
    ("rates", "error", "reason"),
    [
        (
            "{5g: 1}",
            ConfigError,
            "gpus.yaml: gpus.0.demands.m: '5g' is not a profile of H100-80; expected one of 7g.80gb, ",
        ),
        (
            "{1g: 1}",
            InfeasibleLayout,
            "gpus.yaml: gpus.0.demands: m: one H100-80 is not enough; it could serve 70% of these rates",
        ),
    ],
)
def test_demands_that_cannot_be_served_are_reported(rates: str, error: type[Exception], reason: str) -> None:
    file = decode_layouts(gpu_file(f"demands: {{m: {{rate: 10, rates: {rates}}}}}"), "gpus.yaml")
    with pytest.raises(error) as refused:
        plan_gpu(file, 0, H100, GpuState())
    assert without_line(refused.value).startswith(reason)


def test_what_does_not_fit_is_reported_with_what_would() -> None:
    file = decode_layouts(gpu_file("instances: {3g: 2, 1g: 1}"), "gpus.yaml")
    with pytest.raises(InfeasibleLayout) as refused:
        plan_gpu(file, 0, H100, GpuState())
    assert without_line(refused.value) == (
        "gpus.yaml: gpus.0.instances: 2 x 3g.40gb, 1g.10gb does not fit on H100-80: "
        "they take 9 memory slices of 8; 2 x 3g.40gb would fit"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("instances: {3g: 1}", "now.yaml: gpus.0: '3g': expected 3g.40gb@START, where START is one of 0, 4"),
        ("users: {3g@0: [me]}", "now.yaml: gpus.0.users: 3g.40gb@0 is not one of the instances"),
        (
            "instances: [3g@0, 4g@0]",
            "now.yaml: gpus.0: instances: the layout is not possible: 4g.40gb@0 and 3g.40gb@0 overlap",
        ),
        (
            "instances: [1g@0, 1g@0]",
            "now.yaml: gpus.0: instances: the layout is not possible: 1g.10gb@0 is given twice",
        ),
    ],
)
def test_a_layout_that_is_there_must_be_one(line: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode_layouts(gpu_file(line), "now.yaml").present(0, H100)
    assert without_line(refused.value) == reason


def test_a_plan_of_a_gpu_in_use_says_who_is_in_the_way() -> None:
    file = decode_layouts(gpu_file("instances: {7g: 1}"), "gpus.yaml")
    present = GpuState(
        mig=True, instances={parse_placement(H100, "3g@0"): ("python (pid 7)",), parse_placement(H100, "3g@4"): ()}
    )
    plan = plan_gpu(file, 0, H100, present)
    assert [str(step) for step in plan.steps] == ["destroy 3g.40gb@4", "destroy 3g.40gb@0", "create 7g.80gb@0"]
    assert plan.refusals == ("3g.40gb@0 is in use by python (pid 7)",)


def test_the_mode_of_a_whole_gpu_in_use_does_not_change() -> None:
    file = decode_layouts(gpu_file("instances: {7g: 1}"), "gpus.yaml")
    plan = plan_gpu(file, 0, H100, GpuState(users=("python (pid 7)",)))
    assert plan.refusals == ("the MIG mode cannot change while the GPU is in use by python (pid 7)",)
    assert [str(each) for each in largest_first(plan.wanted)] == ["7g.80gb@0"]
