"""The parts of a container that a test can make here: namespaces of its own, and a cgroup with a quota."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

NOBODY = 54_321
"""A user without an entry in /etc/passwd."""

_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_IMPORTED = "sluice.gateway.cli.main"
_SCRIPT = """
set -e
writable=$1 shm=$2 python=$3 home=$4; shift 4
mount --make-rprivate /
if [ -n "$home" ]; then
    mount -t tmpfs -o mode=755 tmpfs /mnt
    mkdir /mnt/python
    mount --bind "$python" /mnt/python
    mount -t tmpfs -o mode=755 tmpfs "$home"
    mkdir -p "$python"
    mount --move /mnt/python "$python"
fi
mount --bind "$writable" "$writable"
mount -t tmpfs -o "$shm,mode=1777" tmpfs /dev/shm
for place in / /tmp; do
    if mountpoint -q "$place"; then mount -o remount,bind,ro "$place"; fi
done
cd /
exec "$@"
"""
"""All is read-only then but `writable`, which is a mount of its own, and /dev/shm.

Of `home`, a directory that only its owner may enter, Python is all that is left, so that others may run it.
"""


class Sandbox(NamedTuple):
    """The words to put before a command, and which limits hold for it."""

    before: list[str]
    has_quota: bool
    is_nobody: bool


def may_unshare(*namespaces: str) -> bool:
    """True if a process may have its own user namespace, and further ones such as `--pid`."""
    return _works(["unshare", "--user", "--map-root-user", *namespaces, "--fork", "true"])


@contextmanager
def sandbox(writable: Path, cores: float, shm: str = "size=64m") -> Iterator[Sandbox]:
    """A container-like sandbox in which only `writable` can be written, with the time of `cores` cores.

    It has no HOME, no TMPDIR, a /dev/shm with these mount options, and a user without a name where that user may read
    the environment of this Python. Cgroups and users need root; the rest does not.
    """
    root = os.geteuid() == 0
    before = ["unshare", *(() if root else ("--user", "--map-root-user")), "--mount", "--ipc", "--uts"]
    before += ["sh", "-c", _SCRIPT, "sh", str(writable), shm, sys.base_prefix, _closed_home() if root else ""]
    before += ["env", "-u", "HOME", "-u", "TMPDIR", "-u", "USER", "-u", "LOGNAME", "LC_ALL=C"]
    outer = before.copy()
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    # By way of a child, since `setpriv` itself still has the rights of root when it starts its command.
    probe = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import {_IMPORTED}']))"
    is_nobody = root and _works([*outer, *user, sys.executable, "-c", probe])
    if is_nobody:
        for each in (writable, *writable.rglob("*")):
            os.chown(each, NOBODY, NOBODY)
        before += user
    with _quota(cores) as groups:
        if groups:
            join = "".join(f"echo $$ > '{each}/cgroup.procs'; " for each in groups)
            before = ["sh", "-c", f'{join}exec "$@"', "sh", *before]
        yield Sandbox(before, bool(groups), is_nobody)


@contextmanager
def _quota(cores: float) -> Iterator[list[Path]]:
    """The directories of a cgroup with that quota; none where this process may not make one."""
    name = f"sluice-test-{uuid4().hex[:8]}"
    made: list[Path] = []
    quota_us = round(cores * _PERIOD_US)
    # Version 1 has a directory for each controller. A group of version 2 has the files that its parent hands on.
    for parent, files in (
        (_CGROUPS / "cpu", {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}),
        (_CGROUPS, {"cpu.max": f"{quota_us} {_PERIOD_US}"}),
    ):
        if made or not (parent / "cgroup.procs").exists():
            continue
        group = parent / name
        try:
            group.mkdir()
            made.append(group)
            for file, text in files.items():
                (group / file).write_text(text)
        except OSError:
            for each in made:
                each.rmdir()
            made = []
    try:
        yield made
    finally:
        for each in made:
            with suppress(OSError):  # a process that has just ended may still be listed
                each.rmdir()


def _closed_home() -> str:
    """The uppermost directory above this Python that only its owner may enter; empty without one."""
    above = [each for each in Path(sys.base_prefix).parents if not each.stat().st_mode & 0o001]
    if not above or any(Path(each).is_relative_to(above[-1]) for each in (__file__, sys.prefix)):
        return ""
    return str(above[-1])


def _works(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
