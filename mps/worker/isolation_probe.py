"""A trial of a partition without models: binds itself as a worker does and reports its evidence.

It runs as `python -m sluice.mps.worker.isolation_probe`.
"""

import subprocess
import sys

import msgspec

from sluice.models.errors import PartitionError
from sluice.mps.isolation.launch import module_environment
from sluice.mps.isolation.pinning import bind_to_partition, worker_environment
from sluice.mps.partitions.isolation_report import Evidence
from sluice.mps.partitions.partition import Partition
from sluice.mps.worker.evidence import gather_evidence

TIMEOUT_S = 30.0


def probe_partition(partition: Partition) -> Evidence:
    """Return the evidence of a process without models on the partition; raises PartitionError when there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sluice.mps.worker.isolation_probe"],
            input=msgspec.json.encode(partition),
            env=module_environment() | worker_environment(partition),
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
        raise PartitionError(f"partition {partition.name}: the trial process failed: {why}") from None


def main() -> None:
    """Read a partition from standard input, write the evidence to standard output."""
    partition: Partition = msgspec.json.decode(sys.stdin.buffer.read(), type=Partition)
    bind_to_partition(partition)
    sys.stdout.buffer.write(msgspec.json.encode(gather_evidence(partition)))


if __name__ == "__main__":
    main()
