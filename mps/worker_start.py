"""What a worker process runs first: it keeps to its cores before it imports what takes long.

`python -m mps.worker_start CORES …`: `mps.worker` gets the other arguments.
"""

import os
import sys
from contextlib import suppress


def main() -> int:
    """Become a worker on the cores of the first argument, such as 0,1 ("": any); returns the exit status."""
    if cores := sys.argv.pop(1):
        with suppress(OSError):  # `mps.proof` tells
            os.sched_setaffinity(0, map(int, cores.split(",")))
    from mps.worker import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
