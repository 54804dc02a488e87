"""Makes typing errors in configurations of all kinds and reads them: `python -m scripts.count_typos --seed 0`.

Prints each error, and how many of 50 name the line and what was meant.
"""

import argparse
import sys

from tests.support.typos import refused_typos

LEAST_SHARE = 0.9


def main() -> int:
    """Run the command; returns 1 if fewer than nine of ten typing errors are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="how many typing errors to make")
    parser.add_argument("--seed", type=int, default=0, help="seed of the typing errors")
    options = parser.parse_args()
    found = refused_typos(options.count, options.seed)
    for file, typo, error in found:
        print(f"{file}, line {typo.line}, {typo.kind}, meant '{typo.meant}'\n    {error}")
    unnamed = [each for each in found if not each.is_named]
    for file, typo, error in unnamed:
        print(f"NOT NAMED: {file}, line {typo.line}, {typo.kind}, meant '{typo.meant}': {error}")
    named = len(found) - len(unnamed)
    print(f"seed {options.seed}: {named} of {len(found)} typing errors are named with line and suggestion")
    return 0 if named >= LEAST_SHARE * len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
