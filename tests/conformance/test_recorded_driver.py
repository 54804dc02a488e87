"""Answers of a real driver (580.159.04, on an H200) against the code that reads them, and against the fakes."""

from pathlib import Path

import pytest

from sluice.models.backends.device_errors import is_context_lost, is_out_of_memory
from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.control import MpsClient, MpsServer
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.mig.geometry import GEOMETRIES, MigProfile, geometry_of
from sluice.mps.partitions.isolation_report import Evidence, MpsFacts, VisibleGpu, isolation_violations
from sluice.mps.partitions.partition import MpsPartition
from tests.support.gpu.fake_mps_state import FakeClient, FakeState
from tests.support.gpu.recorded import recorded, replaying_program

MPS = recorded("mps")
CARD = recorded("card")
SHARES = {int(share): count for share, count in recorded("shares")["multiprocessors"].items()}
WHOLE = recorded("shares")["whole"]
UUID = "GPU-00000000-0000-0000-0000-000000000000"
(SERVER,) = (int(each["out"]) for each in MPS["one_client"] if each["command"] == "get_server_list")
(CLIENT,) = (int(each["out"]) for each in MPS["one_client"] if each["command"] == f"get_client_list {SERVER}")


def control(directory: Path, *parts: str) -> Protocol2:
    """The commands of a daemon that answers as in those parts of the recording."""
    answers = [each for part in parts for each in (MPS[part] if isinstance(MPS[part], list) else [MPS[part]])]
    return Protocol2(MpsChannel(directory, replaying_program(directory, answers)))


def test_a_daemon_without_a_server_is_read(tmp_path: Path) -> None:
    found = control(tmp_path, "no_server")
    found.ping()
    assert (found.servers(), found.clients()) == ((), ())


def test_a_server_and_its_client_are_read(tmp_path: Path) -> None:
    found = control(tmp_path, "one_client")
    assert found.servers() == (MpsServer(SERVER, "ACTIVE"),)
    assert found.clients() == (MpsClient(CLIENT, SERVER),)


def test_a_client_is_terminated(tmp_path: Path) -> None:
    _, server, client = MPS["terminated"]["command"].split()
    control(tmp_path, "terminated").terminate_client(MpsClient(int(client), int(server)))


def test_a_server_that_has_just_ended_is_none(tmp_path: Path) -> None:
    list_of_one = {"command": "get_server_list", "rc": 0, "out": "4194304\n", "err": ""}
    answers = [list_of_one, *MPS["no_server"][1:], *MPS["refused"]]
    found = Protocol2(MpsChannel(tmp_path, replaying_program(tmp_path, answers)))
    assert (found.servers(), found.clients()) == ((), ())


def test_a_refusal_is_an_error_though_its_status_is_0(tmp_path: Path) -> None:
    found = control(tmp_path, "refused", "no_server")
    with pytest.raises(ControlFailed, match=r"answered 'Invalid process 4194304! \| 1', expected 0"):
        found.terminate_client(MpsClient(4194304, SERVER))
    with pytest.raises(ControlFailed, match=r"answered 'Server 4194304 not found \| Server 4194304 not found! \| 1'"):
        found.terminate_client(MpsClient(4194304, 4194304))
    with pytest.raises(ControlFailed, match="""answered 'Unknown command "sm_partition"', expected the name"""):
        found.add_partition(UUID, 4)
    with pytest.raises(ControlFailed, match="""answered 'Unknown command "lspart"', expected a row"""):
        found.free_chunks()


def test_no_daemon_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ControlFailed, match="failed with status 1: 'Cannot find MPS control daemon process'"):
        control(tmp_path, "no_daemon").servers()


@pytest.mark.parametrize("share", SHARES)
def test_the_multiprocessors_of_a_share_prove_it_and_are_those_of_the_fake(share: int) -> None:
    gpu = VisibleGpu(1, UUID.removeprefix("GPU-"), SHARES[share])
    evidence = Evidence(gpu=gpu, mps=MpsFacts(client=True, multiprocessors=WHOLE))
    assert isolation_violations(MpsPartition("p", UUID, share), evidence) == []
    state = FakeState(UUID, {"sms": WHOLE}, static=False)
    wish = {"pid": 1, "name": "python", "share": str(share), "limit": 0, "partition": ""}
    client = state.admit(state.new_server(1), wish, None)
    assert isinstance(client, FakeClient)
    assert client.sms == SHARES[share]


def test_the_profiles_of_the_driver_are_those_of_the_table() -> None:
    found = [
        MigProfile(
            each["name"].lower().removeprefix("mig "),
            each["id"],
            each["slices"],
            each["placements"][0][1],
            tuple(start for start, _ in each["placements"]),
            each["multiprocessors"],
            each["memory_mib"],
        )
        for each in CARD["profiles"]
    ]
    assert geometry_of("H200", found) == GEOMETRIES["H200"]


@pytest.mark.parametrize("error", recorded("errors"), ids=lambda error: str(error["from"]))
def test_the_errors_of_runtimes_are_recognised(error: dict[str, str]) -> None:
    raised = RuntimeError(error["text"])
    assert (is_out_of_memory(raised), is_context_lost(raised)) == (error["kind"] == "memory", error["kind"] == "lost")
