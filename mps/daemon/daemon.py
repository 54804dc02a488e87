"""The MPS control daemon of one GPU or MIG device: its files, start and end."""

import contextlib
import fcntl
import json
import math
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import MpsChannel, NoAnswer, mps_variables, quoted_output
from sluice.mps.daemon.control import MpsControl
from sluice.mps.daemon.processes import PROGRAM, end_processes, mps_processes
from sluice.mps.daemon.protocol2 import Protocol2
from sluice.mps.daemon.protocol3 import Protocol3
from sluice.mps.isolation.launch import launch_command
from sluice.mps.isolation.mps_environment import (
    STATIC_SETS_FILE,
    checked_pipe_directory,
    device_directory,
    pipe_directory,
)

READY_S = 15.0
"""Time for a daemon to answer after its start."""
QUIT_S = 10.0
"""Time for a daemon to end its servers by itself."""
LOG_LIMIT_BYTES = 8 << 20
"""Size of a log on disk from which it is truncated: daemons and servers write for as long as they run."""
LOG_KEPT_BYTES = 1 << 20
"""End of a truncated log that is kept."""

_LOOK_S = 0.02
_SOCKET = "control"
_LOG = "control.log"
_TAIL = 2000
_BLOCK_BYTES = 512
_OTHERS = 0o077
"""The permissions of everyone but the owner."""


class DaemonInUse(ControlFailed):
    """Another process keeps the daemon of that device, and may stop it at any time."""


class MpsDaemon:
    """A daemon that this process starts for itself and that ends with this process, however it ends.

    The compute mode of the GPU stays as it is: MPS works in the default mode. Processes that a killed predecessor left
    in the same directory are ended first.
    """

    def __init__(
        self,
        device: str,
        root: Path | None = None,
        *,
        sets: Mapping[str, int] = {},
        protocol: int = 2,
        program: str = PROGRAM,
    ) -> None:
        """`device` is a UUID. `protocol` may be 3; it becomes the driver's protocol when the daemon starts.

        `sets` are percentages by partition, for which static sets of multiprocessors are created then; a driver without
        them is an error.
        """
        self.device = device
        self.directory = device_directory(device, root)
        self.pipes = checked_pipe_directory(pipe_directory(device, root))
        self.logs = self.directory / "log"
        self._sets = sets
        self._attempts = list(dict.fromkeys([(protocol, bool(sets)), (2, bool(sets)), (2, False)]))
        self.protocol, self._static = self._attempts[0]
        self._program = program
        self._lock = -1
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel = MpsChannel(self.pipes, program)

    @property
    def control(self) -> MpsControl:
        """The commands of the daemon."""
        return self._control(self._channel)

    @property
    def pid(self) -> int | None:
        """The process id of the daemon, None when it does not run."""
        process = self._process  # the watchdog's thread may reset it at any moment
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the daemon and return when it answers; raises ControlFailed, with the daemon's output.

        The daemon ends with the thread that calls this. The first start finds out by trying whether the driver has
        protocol 3 and static sets.
        """
        if self.pid is not None:
            return
        *better, last = self._attempts
        try:
            if self._lock == -1:
                self._lock_directory()
            for self.protocol, self._static in better:
                with contextlib.suppress(ControlFailed):
                    self._start()
                    break
            else:
                self.protocol, self._static = last
                self._start()
            self._create_static_sets()
            self._attempts = [(self.protocol, self._static)]
        except OSError as error:
            self.stop()
            raise ControlFailed(f"the MPS daemon of {self.device} cannot be started: {error}") from error
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """End what is left of a daemon that has ended or does not answer, by force, then `start`."""
        if self._lock != -1:
            self._clean_up()
        self.start()

    def probe(self, timeout_s: float) -> None:
        """Return when the daemon answers; raises ControlFailed when it refuses, NoAnswer when it does not in time.

        A daemon without its socket never answers.
        """
        if not (self.pipes / _SOCKET).exists():
            raise NoAnswer(f"the MPS daemon of {self.device} has no socket in {self.pipes} any more")
        self._control(MpsChannel(self.pipes, self._program, timeout_s)).ping()

    def truncate_logs(self) -> None:
        """Truncate the logs of the daemon and its servers when they have become long."""
        for log in self.logs.glob("*.log"):
            _truncate_log(log)

    def stop(self) -> None:
        """Stop the daemon, its servers and so its clients' contexts, within a time limit and by force if necessary."""
        if self._lock == -1:
            return
        try:
            if self.pid is not None:
                with contextlib.suppress(ControlFailed):
                    self.control.quit(QUIT_S)
                    self._wait_for_exit(QUIT_S)
            self._clean_up()
        finally:
            os.close(self._lock)
            self._lock = -1

    def _control(self, channel: MpsChannel) -> MpsControl:
        return Protocol3(channel) if self.protocol == 3 else Protocol2(channel)

    def _start(self) -> None:
        self._clean_up()
        self.pipes.mkdir(mode=0o700)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        self.truncate_logs()
        flags = ["-f", *(["-S"] if self._static and self.protocol == 2 else [])]
        flags += ["-p", str(self.protocol)] if self.protocol != 2 else []
        variables = mps_variables(self.pipes, self.logs) | {"CUDA_VISIBLE_DEVICES": self.device}
        # Appends to the last daemon's output; the daemon itself writes there, too.
        with (self.logs / _LOG).open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*launch_command(()), self._program, *flags],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self.pid is None:
                raise ControlFailed(
                    f"the MPS daemon of {self.device} ended with status {self._process.returncode}, "
                    f"and printed {self._log_tail()}"
                )
            if time.monotonic() > deadline:
                raise ControlFailed(
                    f"the MPS daemon of {self.device} does not answer within {READY_S:g} s, "
                    f"and printed {self._log_tail()}"
                )
            time.sleep(_LOOK_S)

    def _create_static_sets(self) -> None:
        """Create the static sets, and write their names to the file that the workers read."""
        if not self._sets:
            return
        if not self._static:
            raise ControlFailed(
                f"the driver of {self.device} has no static sets of multiprocessors; expected mode hard"
            )
        if self.protocol == 3:
            self.control.start_server()  # the sets are a server's
        chunks = self.control.free_chunks()
        for name, percent in self._sets.items():
            if chunks * percent < 100:
                raise ControlFailed(
                    f"partition {name}: {percent} % of the {chunks} chunks of multiprocessors of {self.device} are not "
                    f"a whole one, expected at least {math.ceil(100 / max(chunks, 1))} %"
                )
        names = {
            name: self.control.add_partition(self.device, chunks * percent // 100)
            for name, percent in self._sets.items()
        }
        (self.directory / STATIC_SETS_FILE).write_text(json.dumps(names), encoding="utf-8")

    def _answers(self) -> bool:
        if not (self.pipes / _SOCKET).exists():
            return False
        try:
            self.control.ping()
        except ControlFailed:
            return False
        return True

    def _log_tail(self) -> str:
        said = (self.logs / _LOG).read_bytes()[self._log_start :]
        return quoted_output(said[-_TAIL:].decode(errors="replace"))

    def _lock_directory(self) -> None:
        """Make the directories, for this user only, and keep others from starting a daemon in them."""
        root = self.directory.parent
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = root.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & _OTHERS:
            raise ControlFailed(
                f"no MPS daemon can be started in {root}: it is {stat.filemode(about.st_mode)} of user {about.st_uid}, "
                f"expected a directory that only user {os.getuid()} may enter, drwx------"
            )
        self.directory.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 20).decode(errors="replace").strip()
            os.close(lock)
            raise DaemonInUse(f"the MPS daemon of {self.device} is run by another process (pid {owner})") from None
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def _clean_up(self) -> None:
        """End every process that still runs in the directory, also a killed predecessor's, and remove its sockets."""
        own = () if self.pid is None else (self.pid,)  # before its exec it does not look like an MPS process
        end_processes(tuple({*own, *mps_processes(self.pipes)}), QUIT_S)
        if self._process is not None:
            self._wait_for_exit(QUIT_S)
        shutil.rmtree(self.pipes, ignore_errors=True)
        (self.directory / STATIC_SETS_FILE).unlink(missing_ok=True)

    def _wait_for_exit(self, timeout_s: float) -> None:
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pid = self._process.pid
                raise ControlFailed(f"the MPS daemon of {self.device} (pid {pid}) does not exit") from None
            self._process = None


def _truncate_log(log: Path) -> None:
    """Empty a log that takes more than LOG_LIMIT_BYTES, and keep its end as `NAME.old`; its writer goes on as before.

    Lines that are written at that moment may be lost. A writer that does not append leaves a hole where the file was,
    which takes no space.
    """
    with contextlib.suppress(OSError), log.open("r+b") as file:
        about = log.stat()
        if about.st_blocks * _BLOCK_BYTES > LOG_LIMIT_BYTES:
            file.seek(max(0, about.st_size - LOG_KEPT_BYTES))
            with contextlib.suppress(OSError):  # a full disk has no room for the old lines
                log.with_name(f"{log.name}.old").write_bytes(file.read(LOG_KEPT_BYTES))
            file.truncate(0)
