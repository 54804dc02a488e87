import asyncio
import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from pathlib import Path

import pytest

from sluice.models.distribution import cache as cache_module
from sluice.models.distribution.cache import FilesUnavailable, HeldFiles, ModelCache
from sluice.models.distribution.file_set import FileSet
from sluice.models.distribution.local_files import LocalFiles
from sluice.models.distribution.sources import FileSource
from sluice.models.errors import NotFoundError
from tests.unit.models.distribution.files import MODEL, Holder, set_of

ONE = {MODEL: b"first model", "m/config.pbtxt": b"shared", "m/1/empty": b""}
TWO = {MODEL: b"second model!", "m/config.pbtxt": b"shared"}
THREE = {MODEL: b"third model, long"}


@pytest.fixture(autouse=True)
def _any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SPARE_BYTES", 0)


@pytest.fixture
def held() -> Iterator[list[HeldFiles]]:
    """All that a test holds; it is released at its end."""
    every: list[HeldFiles] = []
    yield every
    for each in every:
        each.release()


@pytest.fixture
def ensure(held: list[HeldFiles]) -> Callable[[ModelCache, FileSet, Sequence[FileSource]], HeldFiles]:
    def ensured(cache: ModelCache, files: FileSet, sources: Sequence[FileSource]) -> HeldFiles:
        held.append(asyncio.run(cache.ensure(files, sources)))
        return held[-1]

    return ensured


Ensure = Callable[[ModelCache, FileSet, Sequence[FileSource]], HeldFiles]


def cache_in(tmp_path: Path, max_bytes: int = 1000) -> ModelCache:
    return ModelCache(tmp_path / "cache", max_bytes, machine="")


def tree(held: HeldFiles) -> dict[str, bytes]:
    root = held.model.parents[2]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def contents(tmp_path: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in (tmp_path / "cache/contents").iterdir())


def left_over(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache/receiving").iterdir() if "part" in path.name]


def test_files_come_from_a_source_once(tmp_path: Path, ensure: Ensure) -> None:
    cache, holder = cache_in(tmp_path), Holder(ONE)
    first = ensure(cache, set_of(ONE), [holder.source()])
    assert (tree(first), first.model.name, first.is_copy) == (ONE, "model.py", True)
    assert sorted(path for path, _ in holder.reads) == [MODEL, "m/config.pbtxt"]  # what is empty is not asked for
    assert first.received == {"peer a:1": 17}
    again = ensure(cache, set_of(ONE), [])
    assert (tree(again), again.received) == (ONE, {})
    assert tree(ensure(cache_in(tmp_path), set_of(ONE), [])) == ONE  # another process of the machine
    assert left_over(tmp_path) == []


def test_a_new_version_takes_only_what_differs(tmp_path: Path, ensure: Ensure) -> None:
    cache, holder = cache_in(tmp_path), Holder(TWO)
    ensure(cache, set_of(ONE), [Holder(ONE).source()])
    assert tree(ensure(cache, set_of(TWO), [holder.source()])) == TWO
    assert holder.reads[0] == (MODEL, 0)
    assert {path for path, _ in holder.reads} == {MODEL}
    assert cache.used_bytes == len(b"first model" + b"shared" + b"second model!")


def test_tasks_and_processes_that_want_the_same_receive_it_once(tmp_path: Path) -> None:
    async def run() -> None:
        holder = Holder(ONE)
        holder.release.clear()
        caches = [cache_in(tmp_path), cache_in(tmp_path)]
        waiting = [
            asyncio.ensure_future(cache.ensure(set_of(ONE), [holder.source()])) for cache in caches for _ in range(2)
        ]
        await holder.asked.wait()
        holder.release.set()
        held = await asyncio.gather(*waiting)
        assert [tree(each) for each in held] == [ONE] * 4
        assert sorted(holder.reads) == [(MODEL, 0), ("m/config.pbtxt", 0)]
        for each in held:
            each.release()

    asyncio.run(run())


def test_the_next_source_is_asked_when_one_lies_breaks_off_or_hangs(tmp_path: Path, ensure: Ensure) -> None:
    liar, broken, hanging, gateway = Holder(ONE), Holder({}), Holder(ONE), Holder(ONE)
    liar.lies, hanging.hangs = True, True
    sources = [
        liar.source("peer a:1"),
        broken.source("peer b:1"),
        hanging.source("peer c:1", stall_s=0.01),
        gateway.source("gateway"),
    ]
    assert tree(ensure(cache_in(tmp_path), set_of(ONE), sources)) == ONE
    assert [len({path for path, _ in each.reads}) for each in (liar, broken, hanging, gateway)] == [1, 1, 1, 2]
    assert left_over(tmp_path) == []


def test_all_reasons_are_named_when_no_source_gives_the_files(tmp_path: Path, ensure: Ensure) -> None:
    liar = Holder(ONE)
    liar.lies = True
    with pytest.raises(FilesUnavailable) as error:
        ensure(cache_in(tmp_path), set_of(ONE), [liar.source("peer a:1"), Holder({}).source("gateway")])
    assert re.fullmatch(
        r"model file 'm/1/model.py': no source gives its files: peer a:1: '(.*)': it gave other contents; "
        r"gateway: '\1': there is no file '\1'",
        str(error.value),
    )
    with pytest.raises(FilesUnavailable, match="no source gives its files: none is known"):
        ensure(cache_in(tmp_path), set_of(ONE), [])
    assert tree(ensure(cache_in(tmp_path), set_of(ONE), [Holder(ONE).source()])) == ONE


def test_what_was_not_used_for_the_longest_time_goes_first(
    tmp_path: Path, held: list[HeldFiles], ensure: Ensure
) -> None:
    cache = cache_in(tmp_path, max_bytes=40)
    for files in (ONE, TWO):
        ensure(cache, set_of(files), [Holder(files).source()]).release()
    ensure(cache, set_of(ONE), []).release()  # so TWO is older
    ensure(cache, set_of(THREE), [Holder(THREE).source()]).release()
    assert contents(tmp_path) == sorted([b"", b"first model", b"shared", b"third model, long"])
    assert tree(ensure(cache, set_of(ONE), [])) == ONE
    with pytest.raises(FilesUnavailable, match="none is known"):
        ensure(cache, set_of(TWO), [])


def test_the_last_use_of_a_set_is_its_release(tmp_path: Path, ensure: Ensure) -> None:
    cache = cache_in(tmp_path, max_bytes=40)
    one = ensure(cache, set_of(ONE), [Holder(ONE).source()])
    ensure(cache, set_of(TWO), [Holder(TWO).source()]).release()
    one.release()
    one.release()
    ensure(cache, set_of(THREE), [Holder(THREE).source()]).release()
    assert tree(ensure(cache, set_of(ONE), [])) == ONE


def test_what_a_process_uses_is_never_evicted(tmp_path: Path, ensure: Ensure) -> None:
    one = ensure(cache_in(tmp_path, 40), set_of(ONE), [Holder(ONE).source()])
    again = ensure(cache_in(tmp_path, 40), set_of(ONE), [])
    two = ensure(cache_in(tmp_path, 40), set_of(TWO), [Holder(TWO).source()])
    one.release()
    with pytest.raises(FilesUnavailable, match=r"no room in the cache .*: expected 7 bytes more than its 40, and all"):
        ensure(cache_in(tmp_path, 40), set_of(THREE), [Holder(THREE).source()])
    assert (tree(again), tree(two)) == (ONE, TWO)
    again.release()
    assert tree(ensure(cache_in(tmp_path, 40), set_of(THREE), [Holder(THREE).source()])) == THREE


def test_a_model_that_is_larger_than_the_cache_is_refused(tmp_path: Path, ensure: Ensure) -> None:
    with pytest.raises(FilesUnavailable, match=r"too large for the cache .*: it has 17 bytes, and the cache takes 16"):
        ensure(cache_in(tmp_path, 16), set_of(THREE), [Holder(THREE).source()])


def test_a_disk_without_room_evicts_only_if_that_helps(
    tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_in(tmp_path)
    ensure(cache, set_of(ONE), [Holder(ONE).source()]).release()
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=1))
    with pytest.raises(FilesUnavailable, match=r"disk of .*: 13 bytes are missing, and 12 are free beside a reserve"):
        ensure(cache, set_of(TWO), [Holder(TWO).source()])
    assert tree(ensure(cache, set_of(ONE), [])) == ONE
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=2))
    with pytest.raises(FilesUnavailable, match="13 bytes are missing, and 2 are free"):
        ensure(cache, set_of(TWO), [Holder(TWO).source()])  # the other is in use now


def test_a_disk_without_room_gets_some_from_what_is_not_in_use(
    tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_in(tmp_path)
    ensure(cache, set_of(ONE), [Holder(ONE).source()]).release()
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=2))
    assert tree(ensure(cache, set_of(TWO), [Holder(TWO).source()])) == TWO
    assert contents(tmp_path) == [b"second model!", b"shared"]


def test_an_error_of_the_disk_is_a_sentence(tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(FilesUnavailable, match=r"the cache in .*/cache cannot keep it: Not a directory"):
        ensure(cache_in(tmp_path), set_of(ONE), [])
    (tmp_path / "cache").unlink()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(FilesUnavailable, match="cannot keep it: No space left on device"):
        ensure(cache_in(tmp_path), set_of(ONE), [Holder(ONE).source(), Holder(ONE).source()])
    monkeypatch.undo()
    assert left_over(tmp_path) == []


def test_what_a_crash_leaves_is_removed_but_not_what_others_receive(tmp_path: Path, ensure: Ensure) -> None:
    cache = cache_in(tmp_path)
    ensure(cache, set_of(ONE), [Holder(ONE).source()])
    receiving, sets = tmp_path / "cache/receiving", tmp_path / "cache/sets"
    (receiving / f"{'0' * 64}.part-1-1").write_bytes(b"half")
    (sets / ("1" * 64) / "tree").mkdir(parents=True)
    (tmp_path / "cache/contents" / ("2" * 64)).write_bytes(b"of no set")
    with FileIO(receiving / f"{'3' * 64}.part-2-2", "xb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert tree(ensure(cache_in(tmp_path), set_of(ONE), [])) == ONE
        assert left_over(tmp_path) == [f"{'3' * 64}.part-2-2"]
    assert [path.name for path in sets.iterdir()] == [set_of(ONE).digest]
    assert contents(tmp_path) == sorted(ONE.values())


def test_a_small_disk_keeps_a_part_of_itself_free(
    tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SPARE_BYTES", 256 << 20)
    small = shutil.disk_usage(tmp_path)._replace(total=2000, free=116)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    with pytest.raises(FilesUnavailable, match="17 bytes are missing, and 16 are free beside a reserve"):
        ensure(cache_in(tmp_path), set_of(THREE), [Holder(THREE).source()])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small._replace(free=117))
    assert tree(ensure(cache_in(tmp_path), set_of(THREE), [Holder(THREE).source()])) == THREE


def test_a_cache_is_prepared_before_its_first_use(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.prepare()
    (tmp_path / "cache/receiving" / f"{'0' * 64}.part-1-1").write_bytes(b"half")
    cache.prepare()
    assert left_over(tmp_path) == []


def test_a_manifest_that_is_damaged_costs_another_copy(tmp_path: Path, ensure: Ensure) -> None:
    ensure(cache_in(tmp_path), set_of(ONE), [Holder(ONE).source()]).release()
    (tmp_path / "cache/sets" / set_of(ONE).digest / "manifest.json").write_text("[]")
    assert tree(ensure(cache_in(tmp_path), set_of(ONE), [Holder(ONE).source()])) == ONE


def test_contents_that_were_damaged_are_received_again(tmp_path: Path, ensure: Ensure) -> None:
    cache, holder = cache_in(tmp_path), Holder(ONE)
    model = ensure(cache, set_of(ONE), [Holder(ONE).source()]).model
    model.chmod(0o644)
    model.write_bytes(b"FIRST model")
    assert tree(ensure(cache, set_of(ONE), [holder.source()])) == ONE
    assert {path for path, _ in holder.reads} == {MODEL}
    model.touch()  # only its time differs now
    model.parent.with_name("config.pbtxt").unlink()
    assert tree(ensure(cache, set_of(ONE), [])) == ONE


def test_a_process_that_stopped_receiving_is_not_waited_for(
    tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "OTHER_STALL_S", 0.0)
    monkeypatch.setattr(cache_module, "_LOOK_S", 0.0)
    cache = cache_in(tmp_path)
    with pytest.raises(FilesUnavailable):
        ensure(cache, set_of(THREE), [])
    with (tmp_path / "cache/receiving" / f"{set_of(THREE).files[0].sha256}.turn").open("ab") as paused:
        fcntl.flock(paused, fcntl.LOCK_EX)
        assert tree(ensure(cache, set_of(THREE), [Holder(THREE).source()])) == THREE


def test_a_process_that_keeps_the_cache_to_itself_is_an_error(
    tmp_path: Path, ensure: Ensure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "LOCK_TIMEOUT_S", 0.0)
    (tmp_path / "cache").mkdir()
    with (tmp_path / "cache/lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FilesUnavailable, match="another process has been changing it for 0 s"):
            ensure(cache_in(tmp_path), set_of(ONE), [])


def test_a_load_that_is_given_up_holds_nothing(tmp_path: Path, ensure: Ensure) -> None:
    cache = cache_in(tmp_path, 40)

    async def run() -> None:
        holder = Holder(ONE)
        holder.hangs = True
        loading = asyncio.ensure_future(cache.ensure(set_of(ONE), [holder.source()]))
        await holder.asked.wait()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading

    asyncio.run(run())
    assert left_over(tmp_path) == []
    ensure(cache, set_of(TWO), [Holder(TWO).source()])
    assert tree(ensure(cache, set_of(THREE), [Holder(THREE).source()])) == THREE


def test_a_peer_reads_what_is_whole(tmp_path: Path, ensure: Ensure) -> None:
    cache = cache_in(tmp_path)
    files = set_of(ONE)
    model = ensure(cache, files, [Holder(ONE).source()]).model

    with cache.open(files.digest, MODEL) as opened:
        assert opened.read() == b"first model"
    for digest, path in ((files.digest, "../manifest.json"), ("../../..", "etc/passwd"), (set_of(TWO).digest, MODEL)):
        with pytest.raises(NotFoundError, match="the cache does not have"):
            cache.open(digest, path)
    model.chmod(0o644)
    model.write_bytes(b"FIRST model")
    with pytest.raises(NotFoundError):
        cache.open(files.digest, MODEL)


def test_files_of_this_machine_are_not_copied(tmp_path: Path, ensure: Ensure) -> None:
    path = tmp_path / MODEL
    path.parent.mkdir(parents=True)
    path.write_bytes(b"model")
    files = LocalFiles(machine="boot").file_set("m:1", path, "python")
    here = ensure(ModelCache(tmp_path / "cache", 1, machine="boot"), files, [])
    assert (here.model, here.is_copy) == (path, False)
    assert not (tmp_path / "cache").exists()
    local = LocalFiles(machine="boot")
    local.file_set("m:1", path, "python")
    holder = Holder({MODEL: b"model"})
    copied = ensure(ModelCache(tmp_path / "cache", 10, machine="another"), files, [holder.source()])
    assert (tree(copied), copied.is_copy) == ({MODEL: b"model"}, True)


_LOADING = """
import asyncio, sys
from pathlib import Path
from sluice.models.distribution.cache import ModelCache
from tests.unit.models.distribution.files import Holder, set_of
from tests.unit.models.distribution.test_cache import ONE, TWO

async def load():
    cache = ModelCache(Path(sys.argv[1]), 40, machine="")
    held = await cache.ensure(set_of(ONE), [Holder(ONE).source()])
    half = Holder(TWO)
    half.breaks_after, half.hangs_then = 8, True
    loading = asyncio.ensure_future(cache.ensure(set_of(TWO), [half.source()]))
    await half.broke.wait()
    print("half", flush=True)
    await loading

asyncio.run(load())
"""


def test_a_process_that_is_killed_holds_nothing(tmp_path: Path, ensure: Ensure) -> None:
    cache = cache_in(tmp_path, 40)
    command = [sys.executable, "-c", _LOADING, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        assert left_over(tmp_path) != []
        with pytest.raises(FilesUnavailable, match="all other models in it are in use"):
            ensure(cache, set_of(THREE), [Holder(THREE).source()])
        process.kill()
    assert tree(ensure(cache, set_of(THREE), [Holder(THREE).source()])) == THREE
    assert left_over(tmp_path) == []
