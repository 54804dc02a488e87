"""The entry point of a worker process: it keeps to its cores before it imports slow modules.

`python -m sluice.mps.worker.start CORES …`: `sluice.mps.worker.main` gets the other arguments.
"""

import os
import sys
from contextlib import suppress


def main() -> int:
    """Become a worker on the cores of the first argument, such as 0,1 ("": any); returns the exit status."""
    if cores := sys.argv.pop(1):
        with suppress(OSError):  # the isolation report finds it
            os.sched_setaffinity(0, map(int, cores.split(",")))
    from sluice.mps.worker.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
