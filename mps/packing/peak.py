"""How much memory tenants take together at the worst of times."""

from collections.abc import Sequence

from mps.packing.tenant import Resident


def highest_mib(residents: Sequence[Resident]) -> int:
    """The most that they take at a time from now on; those that stay are loaded one at a time, and maybe again."""
    stay: list[tuple[int, int]] = []
    jobs: list[Resident] = []
    for each in residents:
        lasting_mib = each.tenant.lasting_mib
        if lasting_mib is None:
            jobs.append(each)
        else:
            stay.append((lasting_mib, each.tenant.peak_mib))
    again_mib = sum(mib for mib, _ in stay) + max((peak - mib for mib, peak in stay), default=0)
    return _together_mib(jobs) + again_mib


def _together_mib(residents: Sequence[Resident]) -> int:
    """The most that they take at a time, if all goes on as measured: it only grows where a phase begins."""
    starts = {start - each.age_ns for each in residents for start in each.tenant.starts_ns}
    times = {0} | {time for time in starts if time > 0}
    return max(sum(each.tenant.memory_mib(each.age_ns + time) for each in residents) for time in times)
