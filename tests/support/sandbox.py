"""What of a container a test can make on this machine: namespaces, and cgroups of its own."""

import subprocess


def may_unshare(*namespaces: str) -> bool:
    """True if a process may have its own user namespace, and further ones such as `--pid`."""
    command = ["unshare", "--user", "--map-root-user", *namespaces, "--fork", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
