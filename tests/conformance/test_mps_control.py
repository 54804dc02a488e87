"""The contract of an MpsControl: on the fake, and where there is a GPU on MPS itself."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice.models.errors import ControlFailed
from sluice.mps.daemon import inventory as mps_inventory
from sluice.mps.daemon.channel import MpsChannel, NoAnswer
from sluice.mps.daemon.control import MpsClient
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.daemon.inventory import running_daemons
from sluice.mps.daemon.processes import PROGRAM
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.isolation.mps_environment import await_daemon, static_set
from sluice.mps.partitions.partition import MpsPartition, ShareMode
from tests.support.gateway.processes import alive, until
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess
from tests.support.gpu.fake_mps import GPU

MIB = 1 << 20
HARDWARE = ["hardware"] if Path("/dev/nvidia0").exists() and shutil.which(PROGRAM) else []
OUT_OF_MEMORY, SERVER_NOT_READY, TERMINATED, ILLEGAL_ADDRESS = 2, 807, 810, 700

Clients = Callable[..., CudaProcess]


@pytest.fixture(params=["protocol 2", "protocol 3", *HARDWARE])
def daemon(request: pytest.FixtureRequest, root: Path, program: str) -> Iterator[MpsDaemon]:
    if request.param == "hardware":
        from sluice.mps.nvidia.nvml import open_nvml

        with open_nvml() as nvml:
            found = MpsDaemon(nvml.gpus()[0].uuid, root)
    else:
        found = MpsDaemon(GPU, root, protocol=int(request.param[-1]), program=program)
    found.start()
    yield found
    found.stop()


def test_the_first_client_brings_a_server(daemon: MpsDaemon, clients: Clients) -> None:
    assert daemon.control.servers() == ()
    assert daemon.control.clients() == ()
    client = clients(daemon)
    (server,) = daemon.control.servers()
    assert server.status == "ACTIVE"
    assert daemon.control.clients() == (MpsClient(client.pid, server.pid),)
    client.close()
    assert daemon.control.clients() == ()


def test_a_worker_finds_its_daemon_without_a_trace(
    daemon: MpsDaemon, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(daemon.pipes))
    await_daemon(MpsPartition("p", daemon.device, 50), timeout_s=0.5)
    assert daemon.control.servers() == ()
    assert clients(daemon).hello["error"] == 0


def test_a_driver_without_protocol_3_is_spoken_to_in_the_other(
    daemon: MpsDaemon, root: Path, program: str, clients: Clients
) -> None:
    daemon.stop()
    own = program if daemon.device == GPU else PROGRAM
    daemon = MpsDaemon(daemon.device, root, protocol=3, program=own)
    daemon.start()
    assert daemon.protocol in (2, 3)
    assert clients(daemon).hello["error"] == 0
    daemon.stop()


def test_a_server_can_be_there_before_its_clients(daemon: MpsDaemon, clients: Clients) -> None:
    server = daemon.control.start_server()
    assert daemon.control.start_server() == server
    clients(daemon)
    assert daemon.control.servers() == (server,)


def test_a_client_sees_no_more_multiprocessors_than_its_share(daemon: MpsDaemon, clients: Clients) -> None:
    whole, half, small = (clients(daemon, share).hello["sms"] for share in (100, 50, 10))
    assert whole // 2 >= half > small
    assert small <= max(2, whole // 10)


def test_memory_beyond_the_limit_is_an_error_that_passes(daemon: MpsDaemon, clients: Clients) -> None:
    client = clients(daemon, memory_mb=1024)
    other = clients(daemon)
    assert client.ask("allocate", 2048 * MIB) == OUT_OF_MEMORY
    assert client.ask("allocate", 64 * MIB) == 0
    assert other.ask("allocate", 2048 * MIB) == 0


def test_a_client_that_is_terminated_has_lost_its_context_and_its_neighbour_has_not(
    daemon: MpsDaemon, clients: Clients
) -> None:
    client, neighbour = clients(daemon), clients(daemon)
    (victim,) = (each for each in daemon.control.clients() if each.pid == client.pid)
    daemon.control.terminate_client(victim)
    assert client.ask("check") == TERMINATED
    assert client.ask("allocate", MIB) == TERMINATED
    assert neighbour.ask("allocate", MIB) == 0


def test_static_sets_of_multiprocessors_keep_clients_apart(
    daemon: MpsDaemon, root: Path, program: str, request: pytest.FixtureRequest, clients: Clients
) -> None:
    daemon.stop()
    own = program if daemon.device == GPU else PROGRAM
    share = MpsPartition("half", daemon.device, 50, mode=ShareMode.STATIC)
    daemon = MpsDaemon(daemon.device, root, sets={"half": 50}, protocol=daemon.protocol, program=own)
    try:
        daemon.start()
    except ControlFailed as error:
        assert own == PROGRAM, "the fake has static sets"
        pytest.skip(str(error))
    request.addfinalizer(daemon.stop)
    half = static_set(share, root)
    free = daemon.control.free_chunks()
    name = daemon.control.add_partition(daemon.device, 4)
    assert name.startswith(f"{daemon.device}/")
    assert daemon.control.free_chunks() == free - 4
    large, small = (clients(daemon, CUDA_MPS_SM_PARTITION=each).hello["sms"] for each in (half, name))
    assert large > small > 0
    with pytest.raises(ControlFailed, match=r"sm.partition .*1000"):
        daemon.control.add_partition(daemon.device, 1000)


def test_daemons_are_found_with_their_clients(
    daemon: MpsDaemon, program: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_inventory, "LOOK_S", 30.0)
    client = clients(daemon)
    (found,) = (
        each for each in running_daemons(program if daemon.device == GPU else PROGRAM) if each.pid == daemon.pid
    )
    assert (found.pipes, found.devices, found.trouble) == (daemon.pipes, daemon.device, "")
    assert [each.pid for each in found.clients] == [client.pid]


def test_what_a_daemon_refuses_is_reported_in_its_own_words(fake: MpsDaemon) -> None:
    server = fake.control.start_server()
    with pytest.raises(
        ControlFailed, match=r"'terminate_client .* answered 'Invalid process 4194304! \| 1', expected 0"
    ):
        fake.control.terminate_client(MpsClient(4194304, server.pid))
    with pytest.raises(ControlFailed, match=r"'sm_partition add .* failed .* 'Static partitioning is not enabled'"):
        fake.control.add_partition(GPU, 4)
    fake_mps.inject(fake.pipes, "refuse")
    with pytest.raises(ControlFailed, match="'get_server_list' failed with status 1: 'Insufficient permissions'"):
        fake.control.servers()


def test_a_fatal_error_is_everybodys_until_all_are_gone(fake: MpsDaemon, clients: Clients) -> None:
    culprit, victim = clients(fake), clients(fake)
    fake_mps.inject(fake.pipes, "fault")
    assert fake.control.servers()[0].status == "FAULT"
    assert (culprit.ask("check"), victim.ask("check")) == (ILLEGAL_ADDRESS, ILLEGAL_ADDRESS)
    assert clients(fake).hello["error"] == SERVER_NOT_READY
    with pytest.raises(ControlFailed, match="is in FAULT until its clients have exited"):
        fake.control.start_server()
    culprit.close()
    victim.close()
    assert fake.control.start_server().status == "ACTIVE"
    assert clients(fake).hello["error"] == 0


def test_a_client_that_cannot_be_terminated_is_waited_for_no_longer_than_reported(
    fake: MpsDaemon, program: str, clients: Clients
) -> None:
    client = clients(fake)
    (found,) = fake.control.clients()
    fake_mps.inject(fake.pipes, "wedge", client.pid)
    with pytest.raises(NoAnswer, match=r"'terminate_client .*': no answer within 0\.5 s"):
        Protocol2(MpsChannel(fake.pipes, program, timeout_s=0.5)).terminate_client(found)


def test_a_server_that_is_killed_is_no_longer_listed(fake: MpsDaemon, clients: Clients) -> None:
    client = clients(fake)
    server = fake.control.servers()[0].pid
    os.kill(server, signal.SIGKILL)
    until(lambda: not alive(server))
    assert client.ask("check") in (0, 806)
    assert fake.control.start_server().pid != server


def test_no_more_clients_are_taken_than_there_is_room_for(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch, clients: Clients
) -> None:
    monkeypatch.setenv("FAKE_MPS", '{"max_clients": 2}')
    daemon = MpsDaemon(GPU, root, program=program)
    daemon.start()
    assert [clients(daemon).hello["error"] for _ in range(3)] == [0, 0, 808]
    daemon.stop()


def test_without_a_daemon_cuda_runs_without_mps_and_says_nothing(root: Path) -> None:
    client = CudaProcess({"CUDA_MPS_PIPE_DIRECTORY": str(root), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"})
    assert client.hello == {"error": 0, "sms": 132}
    client.close()
