"""Pacing: the rule by which the queries of a schedule leave."""

import math

import msgspec

from sluice.models.errors import ConfigError


class Pacing(msgspec.Struct, frozen=True):
    """A query leaves when it is due, and while fewer than `outstanding` are open; None stands for any number.

    `group` successive queries leave together, and their number divides `outstanding`. With `from_issue` a query counts
    as due when it leaves. A schedule that `repeats` is played again until the run is over, which is at `max_ns`, or
    when `min_queries` queries have left and one of them at `min_ns` or later (both infinite: never).
    """

    outstanding: int | None = None
    group: int = 1
    from_issue: bool = False
    repeats: bool = False
    min_ns: float = math.inf
    min_queries: float = math.inf
    max_ns: float = math.inf

    def part(self, index: int, count: int) -> "Pacing":
        """The rule for every `count`-th group from number `index` on, which leave apart from the others.

        Raises `ConfigError` when too few queries may be open for each part to have one.
        """
        if self.outstanding is None:
            return self
        groups = self.outstanding // self.group
        if groups < count:
            raise ConfigError(f"--procs {count}: each process needs a query to keep open; the scenario has {groups}")
        return msgspec.structs.replace(
            self,
            outstanding=len(range(index, groups, count)) * self.group,
            min_queries=self.min_queries if math.isinf(self.min_queries) else -(-self.min_queries // count),
        )

    def is_over(self, issued: int, last_ns: int, now_ns: int) -> bool:
        """True when no group leaves any more, after `issued` queries of which the last one left at `last_ns`."""
        return now_ns >= self.max_ns or (issued >= self.min_queries and last_ns >= self.min_ns)

    def ends_needed(self, issued: int) -> int:
        """Number of queries that must have ended before a further group may leave after `issued` queries."""
        return 0 if self.outstanding is None else issued + self.group - self.outstanding


OPEN_LOOP = Pacing()
"""Every query leaves when it is due, whatever the target does with earlier ones."""
