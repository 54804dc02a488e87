"""The rules that the autoscaler is compared with, written from their documentation; each looks every two seconds."""

import math
from collections import deque

from sluice.batcher.interface.scaling_config import ScaledClass
from sluice.batcher.scaling.autoscaler import Autoscaler, ClassDemand
from sluice.models.units import NS_PER_S


class Measured:
    """The measurements that rules of others go by, counted by the experiment since the last look."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.in_flight_ns = 0  # requests in flight, times ns
        self.arrived = 0
        self.busy_ns = 0
        self.up_ns = 0
        self._seen_ns = 0

    def pass_time(self, now_ns: int, up: int) -> None:
        """Count the time since the last event, before which nothing has changed."""
        elapsed_ns = now_ns - self._seen_ns
        self.in_flight_ns += self.in_flight * elapsed_ns
        self.up_ns += up * elapsed_ns
        self._seen_ns = now_ns

    def reset(self) -> None:
        """Begin a new look."""
        self.in_flight_ns = self.arrived = self.busy_ns = self.up_ns = 0


class Rule(Autoscaler):
    """Stands in for the autoscaler of a class; the demand that the scheduler knows is not used."""

    def __init__(self, scaled: ScaledClass, measured: Measured) -> None:
        self._scaled = scaled
        self._measured = measured
        self.panicked_ns = None
        self._before_ns = 0

    def note_traffic(self, now_ns: int) -> None:
        """The rules see traffic for themselves."""

    def is_settled(self, now_ns: int) -> bool:
        """The rules look as long as there is an experiment."""
        return False

    def wanted(self, now_ns: int, demand: ClassDemand, ready: int, start_ns: int) -> int:
        """The number of partitions wanted now, within the bounds of the class."""
        elapsed_s = max(now_ns - self._before_ns, 1) / NS_PER_S
        self._before_ns = now_ns
        count = self.decide(now_ns, elapsed_s, ready)
        self._measured.reset()
        return min(max(count, self._scaled.least), self._scaled.most)

    def decide(self, now_ns: int, elapsed_s: float, ready: int) -> int:
        """The number of partitions that the rule wants, without bounds."""
        raise NotImplementedError


class KnativeRule(Rule):
    """Knative's pod autoscaler (KPA) with its default settings.

    The metric is the mean over 60 s and over 6 s. A pod is to have 70 % of `per_pod`. Panic begins at 200 % (in whole
    pods) and ends after 60 s below. A look at most halves the pods, or multiplies them by 1000. With `by_rate` the
    metric is the requests that come a second, else those that are in flight.
    """

    def __init__(self, scaled: ScaledClass, measured: Measured, per_pod: float, *, by_rate: bool) -> None:
        super().__init__(scaled, measured)
        self._target = 0.7 * per_pod
        self._by_rate = by_rate
        self._samples: deque[tuple[int, float, float]] = deque()
        self._most_in_panic = 0

    def decide(self, now_ns: int, elapsed_s: float, ready: int) -> int:
        """See `Rule`."""
        measured = self._measured
        seen = measured.arrived if self._by_rate else measured.in_flight_ns / NS_PER_S
        self._samples.append((now_ns, seen, elapsed_s))
        while self._samples and self._samples[0][0] <= now_ns - 60 * NS_PER_S:
            self._samples.popleft()
        pods = max(ready, 1)
        stable = math.ceil(self._mean(now_ns - 60 * NS_PER_S) / self._target)
        panic = math.ceil(self._mean(now_ns - 6 * NS_PER_S) / self._target)
        least, most = pods // 2, 1000 * pods
        wanted, in_panic = (min(max(each, least), most) for each in (stable, panic))
        if panic / pods >= 2:
            self.panicked_ns = now_ns
        elif self.panicked_ns is not None and now_ns - self.panicked_ns > 60 * NS_PER_S:
            self.panicked_ns, self._most_in_panic = None, 0
        if self.panicked_ns is not None:
            self._most_in_panic = wanted = max(wanted, in_panic, self._most_in_panic)
        return wanted

    def _mean(self, after_ns: int) -> float:
        lately = [(seen, elapsed_s) for at_ns, seen, elapsed_s in self._samples if at_ns > after_ns]
        return sum(seen for seen, _ in lately) / max(sum(elapsed_s for _, elapsed_s in lately), 1e-9)


class ReactiveRule(Rule):
    """A threshold on the present utilisation, as Kubernetes' horizontal pod autoscaler has it by default.

    Every 15 s the pods are multiplied by the utilisation over 70 %, unless that is within 10 % of 1. They go down to
    the most that was wanted within 5 minutes.
    """

    def __init__(self, scaled: ScaledClass, measured: Measured) -> None:
        super().__init__(scaled, measured)
        self._next_ns = 0
        self._busy_ns = self._up_ns = 0
        self._wanted = scaled.least
        self._recent: deque[tuple[int, int]] = deque()

    def decide(self, now_ns: int, elapsed_s: float, ready: int) -> int:
        """See `Rule`."""
        self._busy_ns += self._measured.busy_ns
        self._up_ns += self._measured.up_ns
        if now_ns < self._next_ns or not self._up_ns:
            return self._wanted
        self._next_ns = now_ns + 15 * NS_PER_S
        ratio = self._busy_ns / self._up_ns / 0.7
        self._busy_ns = self._up_ns = 0
        count = ready if abs(ratio - 1) <= 0.1 else math.ceil(ready * ratio)
        self._recent.append((now_ns, count))
        while self._recent[0][0] <= now_ns - 300 * NS_PER_S:
            self._recent.popleft()
        self._wanted = max(each for _, each in self._recent)
        return self._wanted


class WithoutForecast(Autoscaler):
    """The autoscaler itself, but what is foreseen does not count."""

    def wanted(self, now_ns: int, demand: ClassDemand, ready: int, start_ns: int) -> int:
        """See `Autoscaler`."""
        return super().wanted(now_ns, demand._replace(ahead=0.0), ready, start_ns)
