"""Foresight: the later stages that requests under way are expected to reach, and what became of the loads for them.

Xanadu (Middleware 2020) prepares the functions on the most likely path of a request. Where the request takes another
path, loads that were not ordered are dropped, and models that were loaded for nothing are given free.
"""

from collections.abc import Callable, Collection

from sluice.batcher.state import ModelState, PipelineState, Request, StageState


class _FollowedRequest:
    """The stages that a request is expected to reach, with their models, and the models that it passed by."""

    __slots__ = ("expected", "foreseen", "is_missed", "is_stopped", "passed")

    def __init__(self) -> None:
        self.foreseen: Collection[int] = ()
        self.expected: dict[int, ModelState] = {}
        self.passed: list[tuple[PipelineState, ModelState]] = []
        self.is_missed = False
        self.is_stopped = False


class Foresight:
    """Follows requests for which models may have to be loaded, from their admission to their outcomes.

    The load of an expected model is planned for a time, and ordered then. What was ordered ahead of the rows ends in
    one of four ways: it is one of the `hits` if the model was there when rows came to the stage, `late` if they waited
    for the load, `missed` if none of the requests that it was for reaches the stage, and `lost` if it failed or the
    model went before. `idle_ns` is for how long these models lay there before rows came, or before it was known that
    none would; in the latter case `release` is called. `waited_ns` is for how long the first rows waited for those that
    were late.
    """

    def __init__(self, release: Callable[[ModelState], None]) -> None:
        self._release = release
        self.followed: dict[int, _FollowedRequest] = {}
        self._changed: dict[int, Request] = {}  # a branch of theirs was decided
        self._departed: dict[int, _FollowedRequest] = {}  # they ended before they reached what was expected
        self._times_ns: dict[ModelState, dict[tuple[int, int], int]] = {}  # by (request, stage), when to order the load
        self._planned: dict[ModelState, int] = {}
        self._prepared: dict[ModelState, int | None] = {}  # since when it is there; None while it is being loaded
        self._late: dict[ModelState, int] = {}  # being loaded, and since when rows wait
        self._unwanted: dict[ModelState, None] = {}  # missed before they were there
        self._passed: dict[tuple[PipelineState, ModelState], int] = {}
        self.hits = self.late = self.missed = self.lost = 0
        self.idle_ns = self.waited_ns = 0

    @property
    def next_ns(self) -> int | None:
        """When the next planned load is to be ordered; None without any."""
        return min(self._planned.values(), default=None)

    @property
    def is_changed(self) -> bool:
        """True if requests have taken branches, or have ended before they reached what was expected."""
        return bool(self._changed or self._departed)

    @property
    def undecided(self) -> int:
        """The number of loads ordered ahead of which it is not known yet how they end."""
        return len(self._prepared)

    def is_stopped(self, request: int) -> bool:
        """True if nothing more is to be prepared for a request."""
        followed = self.followed.get(request)
        return followed is not None and followed.is_stopped

    def passed_by(self, pipeline: PipelineState, model: ModelState) -> int:
        """The number of requests of a pipeline that have skipped the only stage that a model runs."""
        return self._passed.get((pipeline, model), 0)

    # -- what is expected

    def follow(self, request: int, foreseen: Collection[int]) -> None:
        """Follow a request that is foreseen to reach these stages."""
        if request not in self.followed:
            self.followed[request] = _FollowedRequest()
        self.followed[request].foreseen = foreseen

    def expect(self, request: int, stage: int, model: ModelState, at_ns: int) -> None:
        """Expect a followed request to reach a stage with a model, whose load would be ordered at `at_ns`."""
        expected = self.followed[request].expected
        if expected.setdefault(stage, model) is not model:
            return  # a plan has changed the model of the stage, and the load for it may be under way
        times_ns = self._times_ns.setdefault(model, {})
        before_ns = times_ns.get((request, stage))
        times_ns[request, stage] = at_ns
        if before_ns is not None and before_ns == self._planned.get(model):
            self._planned[model] = min(times_ns.values())

    def plan(self, model: ModelState, at_ns: int) -> None:
        """Plan the load of an expected model for `at_ns`, unless it is planned for an earlier time."""
        self._planned[model] = min(at_ns, self._planned.get(model, at_ns))

    def due(self, now_ns: int) -> list[ModelState]:
        """The models whose loads are to be ordered now; they are no longer planned."""
        due = [(at_ns, model.config.key, model) for model, at_ns in self._planned.items() if at_ns <= now_ns]
        due.sort(key=lambda each: each[:2])
        for _, _, model in due:
            del self._planned[model]
        return [model for _, _, model in due]

    def ordered(self, model: ModelState, *, ahead: bool) -> None:
        """Record that a load was ordered, `ahead` of the rows or for some that wait."""
        self._planned.pop(model, None)
        if ahead and model in self._times_ns:
            self._prepared[model] = None

    # -- what happens

    def loaded(self, model: ModelState, now_ns: int) -> bool:
        """Record that a load has ended; True if no request is expected to need it any more."""
        if model in self._prepared:
            self._prepared[model] = now_ns
        self.waited_ns += now_ns - self._late.pop(model, now_ns)
        if model not in self._unwanted:
            return False
        del self._unwanted[model]
        return model not in self._times_ns

    def dropped(self, model: ModelState, now_ns: int) -> None:
        """Record that a load failed, or that a model goes."""
        self._unwanted.pop(model, None)
        self.waited_ns += now_ns - self._late.pop(model, now_ns)
        if model in self._prepared:
            self.idle_ns += self._idle_ns(model, now_ns)
            del self._prepared[model]
            self.lost += 1

    def reached(self, request: Request, stage: StageState, now_ns: int) -> None:
        """Record that rows have come to a stage of a followed request."""
        followed, index = self.followed[request.identity], stage.index
        model = request.model_of(stage)
        if model is None or followed.expected.get(index) is not model:
            self._miss(request.identity, followed, index, now_ns)
        else:
            self._forget(request.identity, followed, index)
            if model in self._prepared:
                self.idle_ns += self._idle_ns(model, now_ns)
                ready_ns = self._prepared.pop(model)
                if ready_ns is None:
                    self.late += 1
                    self._late[model] = now_ns
                else:
                    self.hits += model.served
                    self.lost += not model.served
        self._decided(request, stage, followed, index not in followed.foreseen)

    def skipped(self, request: Request, stage: StageState, now_ns: int) -> None:
        """Record that no rows come to a stage of a followed request."""
        followed, model, pipeline = self.followed[request.identity], request.model_of(stage), request.pipeline
        self._miss(request.identity, followed, stage.index, now_ns)
        if model is not None and sum([request.model_of(each) is model for each in pipeline.stages]) == 1:
            followed.passed.append((pipeline, model))
            self._passed[pipeline, model] = self.passed_by(pipeline, model) + 1
        self._decided(request, stage, followed, stage.index in followed.foreseen)

    def _decided(self, request: Request, stage: StageState, followed: _FollowedRequest, is_miss: bool) -> None:
        if stage.config.when is not None and not followed.is_stopped:
            followed.is_missed = followed.is_missed or is_miss
            self._changed[request.identity] = request

    def take_changed(self, now_ns: int) -> list[tuple[Request, bool]]:
        """The requests to look at again, and whether they have left the path that was foreseen, once each."""
        for identity, followed in self._departed.items():
            for index in list(followed.expected):
                self._miss(identity, followed, index, now_ns)
        self._departed.clear()
        changed: list[tuple[Request, bool]] = []
        for identity, request in self._changed.items():
            followed = self.followed[identity]
            changed.append((request, followed.is_missed))
            followed.is_missed = False
        self._changed.clear()
        return changed

    def keep_only(self, request: int, stages: Collection[int], now_ns: int) -> None:
        """Expect a request to reach no other stages than these."""
        followed = self.followed[request]
        for index in [index for index in followed.expected if index not in stages]:
            self._miss(request, followed, index, now_ns)

    def stop(self, request: int, now_ns: int) -> None:
        """Drop what is planned for a request, which is not looked at again."""
        followed = self.followed[request]
        followed.is_stopped = True
        for index in [index for index, model in followed.expected.items() if model in self._planned]:
            self._miss(request, followed, index, now_ns)

    def left(self, request: int) -> bool:
        """Forget a request that has its outcome; True if something was still expected of it."""
        followed = self.followed.pop(request, None)
        if followed is None:
            return False
        self._changed.pop(request, None)
        for each in followed.passed:
            self._passed[each] -= 1
            if not self._passed[each]:
                del self._passed[each]
        if followed.expected:
            self._departed[request] = followed
        return bool(followed.expected)

    def _miss(self, request: int, followed: _FollowedRequest, stage: int, now_ns: int) -> None:
        """Do not expect a request to reach a stage any more; what was loaded only for that was loaded for nothing."""
        model = self._forget(request, followed, stage)
        if model is None or model in self._times_ns or model not in self._prepared:
            return
        self.missed += 1
        self.idle_ns += self._idle_ns(model, now_ns)
        if self._prepared.pop(model) is None:
            self._unwanted[model] = None
        else:
            self._release(model)

    def _forget(self, request: int, followed: _FollowedRequest, stage: int) -> ModelState | None:
        model = followed.expected.pop(stage, None)
        if model is None:
            return None
        times_ns = self._times_ns[model]
        at_ns = times_ns.pop((request, stage))
        if not times_ns:
            del self._times_ns[model]
            self._planned.pop(model, None)
        elif self._planned.get(model) == at_ns:
            self._planned[model] = min(times_ns.values())
        return model

    def _idle_ns(self, model: ModelState, now_ns: int) -> int:
        ready_ns = self._prepared[model]
        return 0 if ready_ns is None else now_ns - ready_ns
