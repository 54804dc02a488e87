"""The home of a model: the order in which Apache OpenWhisk's load balancer would try nodes, or partitions, for it.

The home is the hash of the model's name modulo their number, and a step that is coprime to that number leads from each
to the next. So a model runs on few of them at low load, and two models seldom on the same ones.

OpenWhisk hashes the namespace as well. There is none here: requests of several pipelines for one model share batches.
"""

from math import gcd


def home_order(number: int, hashed: int) -> list[int]:
    """The order in which OpenWhisk tries `number` nodes for an action with that hash, which is not negative."""
    if not number:
        return []
    steps = [step for step in range(1, number + 1) if gcd(step, number) == 1]
    home, step = hashed % number, steps[hashed % len(steps)]
    return [(home + step * tried) % number for tried in range(number)]


def name_hash(name: str) -> int:
    """The hash of a name, as Java has it for ASCII strings, without its sign."""
    value = 0
    for letter in name:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return value if value < 1 << 31 else (1 << 32) - value
