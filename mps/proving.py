"""Tries a partition out: `python -m mps.proving` binds itself to one, as a worker does, and tells what it found."""

import subprocess
import sys

import msgspec

from models.errors import PartitionError
from mps.evidence import gather
from mps.launch import module_environment
from mps.partition import Partition
from mps.pinning import bind, environment
from mps.proof import Evidence

TIMEOUT_S = 30.0


def try_out(partition: Partition) -> Evidence:
    """What a process without models finds on the partition; raises PartitionError when there is no telling."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "mps.proving"],
            input=msgspec.json.encode(partition),
            env=module_environment() | environment(partition),
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return msgspec.json.decode(done.stdout, type=Evidence)
    except subprocess.TimeoutExpired:
        raise PartitionError(f"partition {partition.name}: no answer within {TIMEOUT_S:g} s") from None
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"the process ended with status {done.returncode}"
        raise PartitionError(f"partition {partition.name}: it cannot be tried out: {why}") from None


def main() -> None:
    """Read a partition, write the evidence."""
    partition: Partition = msgspec.json.decode(sys.stdin.buffer.read(), type=Partition)
    bind(partition)
    sys.stdout.buffer.write(msgspec.json.encode(gather(partition)))


if __name__ == "__main__":
    main()
