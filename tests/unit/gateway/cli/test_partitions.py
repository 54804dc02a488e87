import io
import os
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from urllib.response import addinfourl

import msgspec
import pytest

from sluice.gateway.cli.client import http as http_client
from sluice.gateway.cli.main import main
from sluice.gateway.partitions.inventory import Enforcement, PartitionStatus, RemoteSlot
from sluice.mps.mig.geometry import GEOMETRIES
from sluice.mps.mig.placements import parse_placement
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.partition import CpuPartition
from tests.support.gpu.fake_nvml import FakeGpu, FakeNvml, installed

H100 = GEOMETRIES["H100-80"]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.fixture(autouse=True)
def no_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other tests run on this machine too."""
    monkeypatch.setattr("sluice.gateway.cli.partitions.running_daemons", lambda: ())


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fail["nvmlInitWithFlags"] = 12
    monkeypatch.setattr("pynvml.nvmlLib", fake)
    monkeypatch.setattr("pynvml._nvmlGetFunctionPointer_cache", {})


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(mig=True)


@pytest.fixture
def fake(gpu: FakeGpu) -> Iterator[FakeNvml]:
    with installed(FakeNvml(gpu)) as fake:
        yield fake


def test_partitions_of_a_running_server_are_listed_with_their_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    core = CpuPartition("edge-0", (0,))
    states = [
        PartitionStatus(core, "cpu1", 4242, Enforcement.ENFORCED, node="n1", url="10.0.0.5:9001"),
        PartitionStatus(RemoteSlot("edge-1"), "cpu1"),
        PartitionStatus(RemoteSlot("edge-2"), "cpu1", lost="node n2: it is gone", url="10.0.0.6:9001"),
    ]
    answer = addinfourl(io.BytesIO(msgspec.json.encode({"partitions": states})), Message(), "")
    monkeypatch.setattr(http_client, "_open_url", lambda server, message, timeout_s: answer)
    assert main(["partitions", "list", "--url", "http://127.0.0.1:8000"]) == 0
    lines = [line.split(maxsplit=4) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["partition", "kind", "node", "address", "models  state"],
        ["edge-0", "cpu1", "n1", "10.0.0.5:9001", "0       up"],
        ["edge-1", "cpu1", "0", "no", "worker"],
        ["edge-2", "cpu1", "10.0.0.6:9001", "0", "node n2: it is gone"],
    ]


def lay_out(gpu: FakeGpu, *places: str) -> None:
    with open_nvml() as control:
        for each in places:
            control.create(gpu.uuid, parse_placement(H100, each))


def write(directory: Path, text: str, name: str = "gpus.yaml") -> str:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_core_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "list"]) == 0
    assert printed(capsys) == [
        "cpu0: core 0",
        "cpu1: core 1",
        "no GPUs: no NVIDIA driver answers on this machine (NVML: NVML Shared Library Not Found)",
    ]


@pytest.mark.usefixtures("no_driver")
def test_the_core_sets_of_a_configuration_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, "partitions: [{name: all, kind: cpu, cores: [0, 1], memory_mb: 512}]")
    assert main(["partitions", "list", "--config", config]) == 0
    assert printed(capsys)[0] == "all: cores 0, 1, 512 MiB for models"


def test_a_gpu_that_is_lost_is_reported_and_the_others_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost, sound = FakeGpu(), FakeGpu(mig=True)
    with installed(FakeNvml(lost, sound)):
        lost.lost = True
        assert main(["partitions", "list"]) == 0
        assert printed(capsys)[2:4] == [
            "GPU 0: lost (NVML: GPU is lost)",
            f"GPU 1: NVIDIA H100 80GB HBM3, 81152 MiB, {sound.uuid}, MIG on",
        ]
        assert main(["partitions", "plan", write(tmp_path, "gpus: [{device: 1, instances: [1g@0]}]")]) == 0
        assert "1. create 1g.10gb@0" in printed(capsys)
        file = write(tmp_path, "gpus: [{device: 0, instances: [1g]}]")
        assert main(["partitions", "plan", file]) == 2
        assert f"{file}: gpus.0.device: GPU 0 is lost (NVML: GPU is lost)" in capsys.readouterr().err
        file = write(tmp_path, f"gpus: [{{device: {lost.uuid}, instances: [1g]}}]")
        assert main(["partitions", "plan", file]) == 2
        assert f"expected one of 0 (lost), 1 ({sound.uuid})" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_gpus_are_listed_with_their_instances(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(gpu, "4g@0", "2g@4")
    gpu.hold(parse_placement(H100, "2g@4"), 4194301)
    assert main(["partitions", "list"]) == 0
    assert printed(capsys)[2:] == [
        "GPU 0: NVIDIA H100 80GB HBM3, 81152 MiB, GPU-00000000-0000-0000-0000-000000000000, MIG on",
        "4g.40gb@0, 64 multiprocessors, 40448 MiB, MIG-00000001-0000-0000-0000-000000000000",
        "2g.20gb@4, 32 multiprocessors, 20096 MiB, MIG-00000002-0000-0000-0000-000000000000, in use by pid 4194301",
        "room for one of: 1g.20gb, 1g.10gb, 1g.10gb+me",
    ]


@pytest.mark.usefixtures("fake")
def test_a_whole_gpu_is_listed_with_what_it_could_be_cut_into(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.mig = False
    assert main(["partitions", "list"]) == 0
    assert printed(capsys)[3] == "MIG profiles: 7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me"


def test_a_user_who_is_not_root_sees_the_names_of_instances(
    fake: FakeNvml, gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(gpu, "4g@0")
    fake.root = False
    assert main(["partitions", "list"]) == 0
    assert printed(capsys)[3:] == [
        "MIG-00000001-0000-0000-0000-000000000000, whose profile and placement are readable by root only"
    ]
    assert main(["partitions", "plan", write(tmp_path, "gpus: [{instances: [1g]}]")]) == 2
    assert "the layout of GPU 0, NVIDIA H100 80GB HBM3, is readable by root only" in capsys.readouterr().err


@pytest.mark.usefixtures("no_driver")
def test_an_empty_h100_is_planned_without_a_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "gpus: [{gpu: H100-80, instances: {1g.10gb: 2, 2g.20gb: 1, 3g.40gb: 1}}]")
    assert main(["partitions", "plan", file]) == 0
    assert printed(capsys)[1:] == [
        "GPU 0 (H100-80)",
        "present: no instances",
        "wanted:  3g.40gb@4, 2g.20gb@0, 1g.10gb@2, 1g.10gb@3",
        "1. turn MIG mode on",
        "2. create 3g.40gb@4",
        "3. create 2g.20gb@0",
        "4. create 1g.10gb@2",
        "5. create 1g.10gb@3",
    ]


@pytest.mark.usefixtures("no_driver")
def test_demands_are_planned_into_instances(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        tmp_path,
        """
gpus:
  - gpu: A100-80
    demands:
      resnet50: {rate: 1000, rates: {1g: 412, 2g: 1086, 3g: 1423, 4g: 1620, 7g: 2796}}
      vgg19: {rate: 700, rates: {1g: 225, 2g: 449, 3g: 755, 4g: 916, 7g: 1531}}
      bert: {rate: 180, rates: {1g: 184, 2g: 364, 3g: 545, 4g: 626, 7g: 844}}
""",
    )
    assert main(["partitions", "plan", file]) == 0
    assert printed(capsys)[1:] == [
        "GPU 0 (A100-80)",
        "present: no instances",
        "wanted:  3g.40gb@4, 2g.20gb@0, 1g.10gb@2",
        "resnet50: 2g.20gb",
        "vgg19: 3g.40gb",
        "bert: 1g.10gb",
        "1. turn MIG mode on",
        "2. create 3g.40gb@4",
        "3. create 2g.20gb@0",
        "4. create 1g.10gb@2",
    ]


@pytest.mark.usefixtures("no_driver")
def test_a_4g_and_a_3g_are_planned_for_what_a_whole_gpu_does_not_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "gpus: [{{gpu: A100-80, demands: {{resnet50: {{rate: 3000, rates: {{{}}}}}}}}}]"
    assert main(["partitions", "plan", write(tmp_path, text.format("7g: 2796"))]) == 2
    assert "resnet50: one A100-80 is not enough; it could serve 93% of these rates" in capsys.readouterr().err
    assert main(["partitions", "plan", write(tmp_path, text.format("3g: 1423, 4g: 1620, 7g: 2796"))]) == 0
    assert printed(capsys)[3:5] == ["wanted:  4g.40gb@0, 3g.40gb@4", "resnet50: 4g.40gb, 3g.40gb"]


@pytest.mark.parametrize(
    ("present", "steps", "status"),
    [
        (
            "instances: [7g@0]",
            ["present: 7g.80gb@0", "destroy 7g.80gb@0", "create 3g.40gb@0", "create 3g.40gb@4"],
            0,
        ),
        (
            "instances: [3g@4, 2g@0, 1g@2], users: {3g@4: [python (pid 7)]}",
            [
                "present: 3g.40gb@4, 2g.20gb@0, 1g.10gb@2",
                "destroy 1g.10gb@2",
                "destroy 2g.20gb@0",
                "create 3g.40gb@0",
            ],
            0,
        ),
        (
            "instances: [7g@0], users: {7g@0: [python (pid 7)]}",
            [
                "present: 7g.80gb@0",
                "destroy 7g.80gb@0",
                "create 3g.40gb@0",
                "create 3g.40gb@4",
                "refused: 7g.80gb@0 is in use by python (pid 7)",
            ],
            1,
        ),
        ("instances: [3g@0, 3g@4]", ["present: 3g.40gb@0, 3g.40gb@4", "nothing to do"], 0),
    ],
)
def test_two_halves_are_planned_from_what_another_file_says(
    present: str, steps: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = write(tmp_path, f"gpus: [{{gpu: H100-80, {present}}}]", "now.yaml")
    file = write(tmp_path, "gpus: [{instances: {3g: 2}}]")
    assert main(["partitions", "plan", file, "--present", now]) == status
    lines = printed(capsys)
    assert lines[0] == "GPU 0 (H100-80)"
    assert lines[2] == "wanted:  3g.40gb@0, 3g.40gb@4"
    assert [line.partition(". ")[2] or line for line in lines if not line.startswith(("GPU", "wanted"))] == steps


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus: [{gpu: H100-80, instances: {3g: 3}}]", "they take 9 compute slices of 7 and 12 memory slices of 8"),
        (
            "gpus: [{gpu: A30, instances: {3g: 1}}]",
            "gpus.0.instances: '3g' is not a profile of A30; expected one of 4g.24gb, ",
        ),
        ("gpus: [{instances: {3g: 1}}]", "no NVIDIA driver answers on this machine"),
    ],
)
@pytest.mark.usefixtures("no_driver")
def test_what_cannot_be_planned_is_reported(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partitions", "plan", write(tmp_path, text)]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_the_present_of_this_machine_is_planned_from(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(gpu, "3g@0", "1g@4")
    assert main(["partitions", "plan", write(tmp_path, "gpus: [{instances: [3g, 3g]}]")]) == 0
    assert printed(capsys)[3:] == ["1. destroy 1g.10gb@4", "2. create 3g.40gb@4"]
    assert gpu.layout == {parse_placement(H100, "3g@0"), parse_placement(H100, "1g@4")}


@pytest.mark.usefixtures("fake")
def test_nothing_is_applied_without_leave(gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "gpus: [{instances: [3g, 3g]}]")
    assert main(["partitions", "apply", file]) == 2
    assert capsys.readouterr().err == "sluice: changes need --allow-mig\n"
    assert gpu.layout == frozenset()


@pytest.mark.usefixtures("fake")
def test_a_layout_is_applied_and_holds(gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.mig = False
    file = write(tmp_path, f"gpus: [{{device: {gpu.uuid[:12]}, instances: {{3g: 1, 1g: 1}}}}]")
    assert main(["partitions", "assert", file]) == 1
    assert printed(capsys) == [
        f"GPU GPU-00000000 is not as in {file}: turn MIG mode on; create 3g.40gb@4; create 1g.10gb@0"
    ]
    assert main(["partitions", "apply", file, "--allow-mig"]) == 0
    assert printed(capsys)[-3:] == [
        "done: turn MIG mode on",
        "done: create 3g.40gb@4: MIG-00000001-0000-0000-0000-000000000000",
        "done: create 1g.10gb@0: MIG-00000002-0000-0000-0000-000000000000",
    ]
    assert main(["partitions", "assert", file]) == 0
    assert gpu.layout == {parse_placement(H100, "3g@4"), parse_placement(H100, "1g@0")}


@pytest.mark.usefixtures("fake")
def test_an_instance_that_programs_do_not_see_is_made_again(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(gpu, "3g@0", "1g@4")
    gpu.instances[0].compute = None  # as `nvidia-smi mig -cgi` leaves it without -C
    file = write(tmp_path, "gpus: [{instances: [3g@0, 1g@4]}]")
    assert main(["partitions", "assert", file]) == 1
    assert printed(capsys) == [f"GPU 0 is not as in {file}: destroy 3g.40gb@0; create 3g.40gb@0"]
    assert main(["partitions", "apply", file, "--allow-mig"]) == 0
    assert main(["partitions", "assert", file]) == 0
    assert gpu.compute(parse_placement(H100, "3g@0")).uuid == "MIG-00000003-0000-0000-0000-000000000000"


@pytest.mark.usefixtures("fake")
def test_what_is_in_use_is_not_taken_away(gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(gpu, "3g@0", "1g@4")
    gpu.hold(parse_placement(H100, "1g@4"), 4194301)
    file = write(tmp_path, "gpus: [{instances: [3g, 3g]}]")
    assert main(["partitions", "apply", file, "--allow-mig"]) == 1
    assert printed(capsys)[-1] == "refused: 1g.10gb@4 is in use by pid 4194301"
    assert gpu.layout == {parse_placement(H100, "3g@0"), parse_placement(H100, "1g@4")}


@pytest.mark.usefixtures("fake")
def test_a_gpu_becomes_whole_again(gpu: FakeGpu, tmp_path: Path) -> None:
    lay_out(gpu, "3g@0", "1g@4")
    assert main(["partitions", "apply", write(tmp_path, "gpus: [{mig: false}]"), "--allow-mig"]) == 0
    assert (gpu.mig, gpu.layout) == (False, frozenset())


def test_a_step_that_fails_ends_it_and_the_next_try_goes_on(
    fake: FakeNvml, gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "gpus: [{instances: [3g, 1g]}]")
    fake.fail["nvmlGpuInstanceCreateComputeInstance"] = 999
    assert main(["partitions", "apply", file, "--allow-mig"]) == 2
    assert "3g.40gb@4 cannot be created on GPU-" in capsys.readouterr().err
    fake.fail.clear()
    assert main(["partitions", "apply", file, "--allow-mig"]) == 0
    assert gpu.layout == {parse_placement(H100, "3g@4"), parse_placement(H100, "1g@0")}


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("1", "1 names 0 GPUs, expected one of 0 (GPU-00000000-"),
        ("MIG-1", "MIG-1 names 0 GPUs"),
        ("''", "names 0 GPUs"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_gpu_that_is_not_there_is_reported(
    device: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partitions", "plan", write(tmp_path, f"gpus: [{{device: {device}}}]")]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_a_layout_for_another_model_of_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "gpus: [{gpu: A30, instances: [1g]}]")
    assert main(["partitions", "apply", file, "--allow-mig"]) == 2
    assert "gpus.0.gpu: GPU 0, NVIDIA H100 80GB HBM3, is H100-80, not A30" in capsys.readouterr().err
    present = write(tmp_path, "gpus: [{gpu: H100-80, instances: [1g@0]}]", "present.yaml")
    assert main(["partitions", "plan", file, "--present", present]) == 2
    assert f"gpus.0.gpu: it is H100-80 in {present}, not A30" in capsys.readouterr().err
    same = write(tmp_path, "gpus: [{gpu: H100-80, instances: [1g]}]")
    assert main(["partitions", "plan", same, "--present", present]) == 0


@pytest.mark.usefixtures("fake")
def test_one_gpu_under_two_names_is_reported(gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, f"gpus: [{{device: 0}}, {{device: {gpu.uuid}}}]")
    assert main(["partitions", "plan", file]) == 2
    assert "gpus.1.device: GPU 0 is listed twice" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_a_gpu_without_mig_is_reported(gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.has_mig = False
    assert main(["partitions", "plan", write(tmp_path, "gpus: [{instances: [1g]}]")]) == 2
    assert "gpus.0.device: GPU 0, NVIDIA H100 80GB HBM3, has no MIG" in capsys.readouterr().err


@pytest.mark.usefixtures("fake")
def test_a_watch_tells_what_leaves_the_layout_and_puts_it_right(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(gpu, "3g@4")
    file = write(tmp_path, "gpus: [{instances: [3g]}]")
    looks = iter(range(4))

    def between_looks(seconds: float) -> None:
        assert seconds == 5
        match next(looks):
            case 0:
                pass
            case 1:
                gpu.instances.clear()
            case 2:
                pass
            case 3:
                raise KeyboardInterrupt

    monkeypatch.setattr("sluice.gateway.cli.partitions.time.sleep", between_looks)
    assert main(["partitions", "watch", file, "--every", "5", "--allow-mig"]) == 0
    assert printed(capsys) == [
        f"all GPUs are as in {file}",
        f"GPU 0 is not as in {file}: create 3g.40gb@4",
        "done: create 3g.40gb@4: MIG-00000002-0000-0000-0000-000000000000",
        "",
    ]


@pytest.mark.usefixtures("fake")
def test_a_watch_without_leave_only_tells(
    gpu: FakeGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sluice.gateway.cli.partitions.time.sleep", interrupt)
    file = write(tmp_path, "gpus: [{instances: [3g]}]")
    assert main(["partitions", "watch", file]) == 0
    assert printed(capsys) == [f"GPU 0 is not as in {file}: create 3g.40gb@4", ""]
    assert gpu.layout == frozenset()


def test_a_watch_puts_right_what_it_may_and_tells_once_what_it_may_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, idle = FakeGpu(mig=True), FakeGpu(mig=True)
    looks = iter(range(3))

    def between_looks(seconds: float) -> None:
        if next(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sluice.gateway.cli.partitions.time.sleep", between_looks)
    file = write(tmp_path, "gpus: [{device: 0, instances: [3g]}, {device: 1, instances: [3g]}]")
    with installed(FakeNvml(busy, idle)):
        lay_out(busy, "7g@0")
        busy.hold(parse_placement(H100, "7g@0"), 4194301)
        assert main(["partitions", "watch", file, "--allow-mig"]) == 0
    assert printed(capsys) == [
        f"GPU 0 is not as in {file}: destroy 7g.80gb@0; create 3g.40gb@4",
        f"GPU 1 is not as in {file}: create 3g.40gb@4",
        "done: create 3g.40gb@4: MIG-00000002-0000-0000-0000-000000000000",
        f"GPU {busy.uuid}: nothing was changed: 7g.80gb@0 is in use by pid 4194301",
        "",
    ]
    assert idle.layout == {parse_placement(H100, "3g@4")}
