"""The life of an MPS daemon: how it is started, kept, lost and ended, on the fake."""

import os
import queue
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.models.errors import ControlFailed, PartitionError
from sluice.mps.daemon import daemon as mps_daemon
from sluice.mps.daemon.channel import MpsChannel
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.daemon.processes import mps_processes
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.daemon.watchdog import MpsWatchdog
from tests.support.gateway.processes import alive, until
from tests.support.gpu import fake_mps
from tests.support.gpu.cuda_process import CudaProcess
from tests.support.gpu.fake_mps import GPU
from tests.support.gpu.fake_mps_state import RPC_FAILURE

Clients = Callable[..., CudaProcess]


def test_a_daemon_leaves_nothing_behind_and_can_be_started_again(fake: MpsDaemon) -> None:
    fake.control.start_server()
    fake.stop()
    assert fake.pid is None
    assert not fake.pipes.exists()
    assert mps_processes(fake.pipes) == ()
    fake.stop()
    fake.start()
    assert fake.control.servers() == ()


def test_mps_inside_mig_is_a_daemon_of_the_instance(root: Path, program: str, clients: Clients) -> None:
    instance = "MIG-7c9d8a52-4a0a-5a66-a7a6-0a4ef3b41b5f"
    daemon = MpsDaemon(instance, root, program=program)
    daemon.start()
    variables = Path(f"/proc/{daemon.pid}/environ").read_bytes().split(b"\0")
    assert f"CUDA_VISIBLE_DEVICES={instance}".encode() in variables
    daemon.stop()


def test_two_devices_have_daemons_that_do_not_share_trouble(fake: MpsDaemon, root: Path, program: str) -> None:
    other = MpsDaemon("GPU-2", root, program=program)
    other.start()
    fake_mps.inject(fake.pipes, "die")
    assert other.control.start_server().status == "ACTIVE"
    other.stop()


def test_no_setting_of_mps_reaches_the_daemon_from_outside(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
    daemon = MpsDaemon(GPU, root, program=program)
    daemon.start()
    assert (daemon.protocol, daemon.control.servers()) == (2, ())
    daemon.stop()


def test_a_daemon_that_dies_is_told_and_started_again(fake: MpsDaemon, clients: Clients) -> None:
    client = clients(fake)
    (server,) = fake.control.servers()
    fake_mps.inject(fake.pipes, "die")
    until(lambda: fake.pid is None)
    with pytest.raises(
        ControlFailed,
        match="MPS command 'get_server_list' failed with status 1: 'Cannot find MPS control daemon process'",
    ):
        fake.control.servers()
    assert client.ask("check") != 0
    fake.start()
    assert server.pid not in mps_processes(fake.pipes)
    assert clients(fake).hello["error"] == 0


def test_a_daemon_that_hangs_is_waited_for_no_longer_than_told(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemon, "QUIT_S", 0.5)
    daemon = MpsDaemon(GPU, root, program=program)
    daemon.start()
    server = daemon.control.start_server()
    pid = daemon.pid
    os.kill(pid or 0, signal.SIGSTOP)
    with pytest.raises(ControlFailed, match=r"MPS command 'get_server_list': no answer within 0\.5 s"):
        Protocol2(MpsChannel(daemon.pipes, program, timeout_s=0.5)).servers()
    daemon.stop()
    assert {pid, server.pid}.isdisjoint(mps_processes(daemon.pipes))


def test_a_daemon_ends_with_the_process_that_started_it(root: Path, program: str) -> None:
    text = (
        "import sys; from pathlib import Path; from sluice.mps.daemon.daemon import MpsDaemon\n"
        "daemon = MpsDaemon(sys.argv[1], Path(sys.argv[2]), program=sys.argv[3]); daemon.start()\n"
        "print(daemon.control.start_server().pid, daemon.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", text, GPU, str(root), program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    daemon = MpsDaemon(GPU, root, program=program)
    with pytest.raises(ControlFailed, match=rf"of {GPU} is run by another process \(pid {owner.pid}\)"):
        daemon.start()
    descriptors = [os.pidfd_open(pid) for pid in pids]
    owner.kill()
    owner.communicate()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 60)[0], "the daemon and its server end by themselves"
        os.close(descriptor)
    daemon.start()
    assert mps_processes(daemon.pipes) == (daemon.pid,)
    daemon.stop()


def test_what_a_killed_daemon_has_left_is_ended_before_the_next_one_starts(fake: MpsDaemon) -> None:
    server = fake.control.start_server()
    assert fake.pid is not None
    os.kill(fake.pid, signal.SIGKILL)
    until(lambda: fake.pid is None)
    assert server.pid in mps_processes(fake.pipes)
    fake.start()
    assert server.pid not in mps_processes(fake.pipes)


def test_a_daemon_that_does_not_start_is_told_with_what_it_said(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = MpsDaemon(GPU, root, program=program)
    monkeypatch.setenv("FAKE_MPS", '{"start": "die"}')
    with pytest.raises(
        ControlFailed, match=rf"the MPS daemon of {GPU} ended with status 1, and printed 'Failed to start : invalid arg"
    ):
        daemon.start()
    monkeypatch.setenv("FAKE_MPS", '{"start": "hang"}')
    monkeypatch.setattr(mps_daemon, "READY_S", 0.3)
    with pytest.raises(ControlFailed, match=r"does not answer within 0\.3 s, and printed nothing"):
        daemon.start()
    assert daemon.pid is None


def test_what_is_started_is_ended_even_if_it_does_not_look_like_mps(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_daemon, "READY_S", 0.3)
    other = root / "other"
    other.write_text('#!/bin/sh\n[ "$1" = -f ] && exec sleep 600\nexit 1\n')
    other.chmod(0o755)
    daemon = MpsDaemon(GPU, root, program=str(other))
    with pytest.raises(ControlFailed, match=r"does not answer within 0\.3 s, and printed nothing"):
        daemon.start()
    assert daemon.pid is None


def test_a_directory_that_others_may_enter_is_refused(root: Path, program: str) -> None:
    root.chmod(0o755)
    daemon = MpsDaemon(GPU, root, program=program)
    with pytest.raises(
        ControlFailed, match=rf"in {root}: it is drwxr-xr-x of user .*, expected a directory that only user"
    ):
        daemon.start()
    file = root / "file"
    file.touch()
    with pytest.raises(ControlFailed, match=f"the MPS daemon of {GPU} cannot be started: .*{file}"):
        MpsDaemon(GPU, file, program=program).start()


def test_a_machine_without_mps_is_told_in_one_sentence(root: Path) -> None:
    daemon = MpsDaemon(GPU, root, program=str(root / "nothing"))
    with pytest.raises(
        ControlFailed, match=r"ended with status 127, and printed 'cannot start .*/nothing: .*No such file"
    ):
        daemon.start()


def test_what_an_old_driver_does_not_have_is_done_without(
    root: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", '{"protocols": [2], "without": ["static"]}')
    daemon = MpsDaemon(GPU, root, program=program, protocol=3)
    daemon.start()
    assert (daemon.protocol, daemon.control.servers()) == (2, ())
    daemon.stop()


def test_a_directory_that_is_too_long_for_a_socket_is_refused(root: Path) -> None:
    with pytest.raises(PartitionError, match=r"would have a path of .* bytes, expected at most 107"):
        MpsDaemon(GPU, root / ("x" * 60))


def test_a_daemon_that_is_killed_is_kept_running(root: Path, program: str) -> None:
    daemon = MpsDaemon(GPU, root, program=program)
    told: queue.Queue[str] = queue.Queue()
    watchdog = MpsWatchdog(daemon, told.put)
    watchdog.start()
    first = daemon.pid
    os.kill(first or 0, signal.SIGKILL)
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} has ended; restarting it"
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} runs again (pid {daemon.pid})"
    assert daemon.control.start_server().status == "ACTIVE"
    watchdog.stop()
    assert daemon.pid is None
    assert mps_processes(daemon.pipes) == ()


def test_a_daemon_that_hangs_is_ended_with_its_server_and_started_again(
    root: Path, program: str, clients: Clients
) -> None:
    class Daemon(MpsDaemon):
        hung = False

        def probe(self, timeout_s: float) -> None:
            if self.hung:  # before, a machine that is slow is not to be taken for a daemon that hangs
                super().probe(timeout_s)

    daemon = Daemon(GPU, root, program=program)
    told: queue.Queue[str] = queue.Queue()
    watchdog = MpsWatchdog(daemon, told.put, heartbeat_s=0.1, answer_s=0.5)
    watchdog.start()
    client = clients(daemon)
    first = mps_processes(daemon.pipes)
    fake_mps.inject(daemon.pipes, "hang")
    daemon.hung = True
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} does not answer; restarting it"
    assert told.get(timeout=60).startswith(f"the MPS daemon of {GPU} runs again (pid ")
    assert client.ask("check") == RPC_FAILURE
    watchdog.stop()
    assert len(first) >= 2, "a daemon and a server"
    until(lambda: not any(map(alive, first)))  # whoever becomes the server's parent takes note of its end


def test_a_daemon_that_nobody_can_reach_is_started_again_also_when_it_does_not_end_at_once(
    root: Path, program: str
) -> None:
    daemon = MpsDaemon(GPU, root, program=program)
    told: queue.Queue[str] = queue.Queue()
    watchdog = MpsWatchdog(daemon, told.put, heartbeat_s=0.1)
    watchdog.start()
    process, waits = daemon._process, [0]
    assert process is not None
    wait = process.wait

    def in_the_driver(timeout: float | None = None) -> int:
        waits[0] += 1
        status = wait(60)
        if waits[0] == 1:
            raise subprocess.TimeoutExpired(program, timeout or 0)
        return status

    process.wait = in_the_driver  # type: ignore[method-assign]
    pid = daemon.pid
    (daemon.pipes / "control").unlink()
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} does not answer; restarting it"
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} (pid {pid}) does not exit"
    assert told.get(timeout=60) == f"the MPS daemon of {GPU} runs again (pid {daemon.pid})"
    watchdog.stop()


def test_a_daemon_that_answers_is_left_alone_whatever_it_answers(fake: MpsDaemon) -> None:
    def questions() -> int:
        return log.read_text().count("Accepting connection")

    fake.stop()
    told: queue.Queue[str] = queue.Queue()
    watchdog = MpsWatchdog(fake, told.put, heartbeat_s=0.01)
    watchdog.start()
    pid, log = fake.pid, fake.logs / "control.log"
    until(lambda: questions() > 3)
    fake_mps.inject(fake.pipes, "refuse")
    before = questions()
    until(lambda: questions() > before + 3)
    assert (fake.pid, told.empty()) == (pid, True)
    watchdog.stop()


def test_logs_do_not_grow_for_ever(fake: MpsDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_daemon, "LOG_LIMIT_BYTES", 1 << 16)
    monkeypatch.setattr(mps_daemon, "LOG_KEPT_BYTES", 1 << 10)
    log = fake.logs / "control.log"
    with log.open("ab") as file:
        file.write(b"x" * (1 << 17))
    (fake.logs / "server.log").write_bytes(b"short")
    fake.truncate_logs()
    assert (fake.logs / "control.log.old").read_bytes() == b"x" * (1 << 10)
    assert fake.control.start_server().status == "ACTIVE"
    assert b"Starting new server" in log.read_bytes(), "the daemon writes on"
    assert b"x" not in log.read_bytes()
    assert (fake.logs / "server.log").read_bytes() == b"short"


def test_a_daemon_is_kept_in_a_process_with_very_many_descriptors(root: Path, program: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = 1200
    if hard < 2 * many:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * many), hard))
    descriptors = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(many)]
    daemon = MpsDaemon(GPU, root, program=program)
    told: queue.Queue[str] = queue.Queue()
    watchdog = MpsWatchdog(daemon, told.put)
    watchdog.start()
    server = daemon.control.start_server()
    os.kill(daemon.pid or 0, signal.SIGKILL)
    assert "has ended" in told.get(timeout=60)
    assert "runs again" in told.get(timeout=60)
    assert server.pid not in mps_processes(daemon.pipes)
    watchdog.stop()
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_who_asks_for_the_process_as_its_keeper_forgets_it_is_told(fake: MpsDaemon) -> None:
    process = fake._process
    assert process is not None
    poll = process.poll

    def forgotten() -> int | None:
        fake._process = None
        return poll()

    process.poll = forgotten  # type: ignore[method-assign]
    assert fake.pid == process.pid
    process.poll = poll  # type: ignore[method-assign]
    fake._process = process


def test_a_daemon_that_does_not_start_is_not_kept(root: Path) -> None:
    watchdog = MpsWatchdog(MpsDaemon(GPU, root, program=str(root / "nothing")), print)
    with pytest.raises(ControlFailed, match="ended with status 127"):
        watchdog.start()
    watchdog.stop()
