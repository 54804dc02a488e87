"""Processes that load models from one cache in any order, give them back, crash, and find files damaged."""

import asyncio
import hashlib
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.models.distribution import cache as cache_module
from sluice.models.distribution.cache import FilesUnavailable, HeldFiles, ModelCache
from tests.unit.models.distribution.files import MODEL, Holder, set_of

MAX_BYTES = 40
MODELS = [
    {MODEL: b"a" * 10, "m/config": b"shared", "m/1/empty": b""},
    {MODEL: b"b" * 12, "m/config": b"shared"},
    {MODEL: b"a" * 10, "m/1/data": b"c" * 9},
    {MODEL: b"d" * 22},
    {MODEL: b"e" * 41},
]
SETS = [set_of(model) for model in MODELS]
PROCESSES = 3


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="cache-"))
        self.spare = mock.patch.object(cache_module, "SPARE_BYTES", 0)
        self.spare.start()
        self.processes = [ModelCache(self.root, MAX_BYTES, machine="") for _ in range(PROCESSES)]
        self.held: list[tuple[int, int, HeldFiles]] = []
        self.crashes = 0

    def teardown(self) -> None:
        for _, _, held in self.held:
            held.release()
        self.spare.stop()
        shutil.rmtree(self.root)

    def needed_bytes(self, model: int) -> int:
        contents = dict(SETS[model].contents)
        for _, each, _ in self.held:
            contents.update(SETS[each].contents)
        return sum(contents.values())

    @rule(
        process=st.integers(0, PROCESSES - 1),
        model=st.integers(0, len(MODELS) - 1),
        kinds=st.lists(st.sampled_from(("good", "empty", "lies", "breaks")), max_size=3),
    )
    def load(self, process: int, model: int, kinds: list[str]) -> None:
        async def ensure() -> HeldFiles:
            sources = []
            for number, kind in enumerate(kinds):
                holder = Holder({} if kind == "empty" else MODELS[model], chunk_bytes=8)
                holder.lies = kind == "lies"
                holder.breaks_after = 8 if kind == "breaks" else None
                sources.append(holder.source(f"peer {number}"))
            return await self.processes[process].ensure(SETS[model], sources)

        fits = self.needed_bytes(model) <= MAX_BYTES
        try:
            self.held.append((process, model, asyncio.run(ensure())))
        except FilesUnavailable:
            is_wrong = fits and bool({"good", "breaks"} & set(kinds))
            assert not is_wrong
        else:
            assert fits
        parts = list((self.root / "receiving").glob("*.part-*")) if (self.root / "receiving").exists() else []
        assert not fits or parts == []

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unload(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))[2].release()

    @precondition(lambda self: (self.root / "contents").exists())
    @rule(process=st.integers(0, PROCESSES - 1), model=st.integers(0, len(MODELS) - 1))
    def crash(self, process: int, model: int) -> None:
        """A process ends while it receives a model, and while it adds or removes another."""
        for each, _, held in self.held:
            if each == process:
                held._use.close()  # type: ignore[union-attr]  # as the kernel does
        self.held = [each for each in self.held if each[0] != process]
        self.processes[process] = ModelCache(self.root, MAX_BYTES, machine="")
        self.crashes += 1
        file = SETS[model].files[0]
        (self.root / "receiving" / f"{file.sha256}.part-{self.crashes}-0").write_bytes(b"half")
        unfinished = self.root / "sets" / f"{self.crashes:064x}"
        (unfinished / "tree/m").mkdir(parents=True)
        (unfinished / "manifest.json.new").write_bytes(b'["')

    @precondition(lambda self: (self.root / "contents").exists())
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        used = {sha256 for _, model, _ in self.held for sha256 in SETS[model].contents}
        others = sorted(each for each in (self.root / "contents").iterdir() if each.name not in used)
        if others:
            content = data.draw(st.sampled_from(others))
            content.chmod(0o644)
            content.write_bytes(b"X" * content.stat().st_size)

    @invariant()
    def what_is_held_is_whole(self) -> None:
        for _, model, held in self.held:
            root = held.model.parents[2]
            assert {path: (root / path).read_bytes() for path in MODELS[model]} == MODELS[model]

    @invariant()
    def the_cache_has_room_for_what_it_has(self) -> None:
        if (self.root / "contents").exists():
            found = {each.name: each.stat().st_size for each in (self.root / "contents").iterdir()}
            assert sum(found.values()) <= MAX_BYTES
            used = {sha256 for _, model, _ in self.held for sha256 in SETS[model].contents}
            assert used <= set(found)
            for name in used:
                assert hashlib.sha256((self.root / "contents" / name).read_bytes()).hexdigest() == name


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=25)
