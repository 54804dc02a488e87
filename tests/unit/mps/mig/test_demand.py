import pytest

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.demand import MigDemand, cover_demands
from sluice.mps.mig.geometry import GEOMETRIES

A100 = GEOMETRIES["A100-80"]

# Best rates by profile on an A100-80, of ParvaGPU's published measurements.
RESNET50 = {"1g": 412, "2g": 1086, "3g": 1423, "4g": 1620, "7g": 2796}
VGG19 = {"1g": 225, "2g": 449, "3g": 755, "4g": 916, "7g": 1531}
BERT = {"1g": 184, "2g": 364, "3g": 545, "4g": 626, "7g": 844}


def demand(rate: float, rates: dict[str, int]) -> MigDemand:
    return MigDemand(rate, {A100.find(name): float(each) for name, each in rates.items()})


def shares(**demands: MigDemand) -> dict[str, str]:
    found = cover_demands(A100, demands)
    return {name: " ".join(profile.name.partition(".")[0] for profile in share) for name, share in found.items()}


def test_a_4g_and_a_3g_serve_what_a_whole_gpu_does_not() -> None:
    large = {name: RESNET50[name] for name in ("3g", "4g", "7g")}
    assert shares(resnet50=demand(2796, {"7g": 2796})) == {"resnet50": "7g"}
    assert shares(resnet50=demand(2846, large)) == {"resnet50": "3g 3g"}
    assert shares(resnet50=demand(3043, large)) == {"resnet50": "4g 3g"}
    with pytest.raises(InfeasibleLayout):
        shares(resnet50=demand(3044, large))


@pytest.mark.parametrize(
    ("rate", "instances"),
    [
        (412, "1g"),
        (413, "2g"),
        (1086, "2g"),
        (1423, "2g 1g"),  # three slices as a 3g, with a slice of memory less
        (1499, "4g"),
        (1620, "4g"),
        (1621, "2g 2g"),
        (3258, "2g 2g 2g"),
        (3670, "2g 2g 2g 1g"),
    ],
)
def test_the_fewest_slices_are_taken(rate: float, instances: str) -> None:
    assert shares(resnet50=demand(rate, RESNET50)) == {"resnet50": instances}


def test_three_pipelines_share_a_gpu() -> None:
    assert shares(resnet50=demand(1000, RESNET50), vgg19=demand(700, VGG19), bert=demand(180, BERT)) == {
        "resnet50": "2g",
        "vgg19": "3g",
        "bert": "1g",
    }


def test_a_demand_that_cannot_be_served_is_reported_with_the_most_that_could_be() -> None:
    with pytest.raises(InfeasibleLayout) as refused:
        shares(resnet50=demand(7340, RESNET50))
    assert str(refused.value) == "resnet50: one A100-80 is not enough; it could serve 50% of these rates"
    with pytest.raises(
        InfeasibleLayout, match="resnet50, bert: one A100-80 is not enough; it could serve 0% of these rates"
    ):
        shares(resnet50=demand(1, RESNET50), bert=demand(1, {}))
