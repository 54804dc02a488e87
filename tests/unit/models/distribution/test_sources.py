import asyncio
from collections.abc import AsyncGenerator, Iterator
from io import FileIO
from pathlib import Path
from typing import ClassVar

import pytest

from sluice.models.distribution import sources as sources_module
from sluice.models.distribution.file_set import FileEntry, make_file_set
from sluice.models.distribution.sources import DiskError, FileSourceError, Part, StreamSource, UriSource
from sluice.models.sources.source import SourceError
from tests.unit.models.distribution.files import MODEL, Holder, set_of

DATA = b"0123456789"
FILES = set_of({MODEL: DATA})
FILE = FILES.files[0]


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Part]:
    with FileIO(tmp_path / "part", "xb") as opened:
        yield Part(opened, FILE)


def fetch(source: StreamSource | UriSource, part: Part, file: FileEntry = FILE) -> None:
    asyncio.run(source.fetch(FILES, file, part))


def refused(source: StreamSource | UriSource, part: Part, message: str) -> None:
    with pytest.raises(FileSourceError, match=message):
        fetch(source, part)


def test_chunks_become_a_file_that_is_verified(part: Part) -> None:
    holder = Holder({MODEL: DATA})
    fetch(holder.source(), part)
    assert (part.path.read_bytes(), part.is_complete, part.matches) == (DATA, True, True)
    assert holder.reads == [(MODEL, 0)]


def test_a_stream_that_breaks_off_goes_on_where_it_was(part: Part) -> None:
    holder = Holder({MODEL: DATA})
    holder.breaks_after = 4
    fetch(holder.source(), part)
    assert (part.path.read_bytes(), part.matches) == (DATA, True)
    assert holder.reads == [(MODEL, 0), (MODEL, 4), (MODEL, 8)]


def test_a_stream_is_continued_a_few_times_only_and_not_without_progress(part: Part) -> None:
    holder = Holder({MODEL: DATA}, chunk_bytes=1)
    holder.breaks_after = 1
    refused(holder.source(), part, rf"peer a:1: '{MODEL}': the connection was reset")
    assert holder.reads == [(MODEL, 0), (MODEL, 1), (MODEL, 2), (MODEL, 3)]


def test_a_source_without_the_file_is_asked_once(part: Part) -> None:
    holder = Holder({})
    refused(holder.source(), part, rf"peer a:1: '{MODEL}': there is no file '{MODEL}'")
    assert holder.reads == [(MODEL, 0)]


def test_an_end_that_comes_too_early_and_bytes_that_come_too_late_are_refused(part: Part) -> None:
    refused(Holder({MODEL: DATA[:-1]}).source(), part, "expected 10 bytes, got 9")
    refused(Holder({MODEL: DATA + b"more"}).source(), part, rf"peer a:1: '{MODEL}': expected 10 bytes, got more")
    assert part.path.stat().st_size <= 10


def test_a_lie_of_the_right_size_is_found_by_its_hash(part: Part) -> None:
    holder = Holder({MODEL: DATA})
    holder.lies = True
    fetch(holder.source(), part)
    assert (part.is_complete, part.matches) == (True, False)


def test_a_stream_that_hangs_is_given_up(part: Part) -> None:
    holder = Holder({MODEL: DATA})
    holder.hangs = True
    refused(holder.source(stall_s=0.01), part, f"peer a:1: '{MODEL}': too slow: 0 of 10 bytes arrived in time")


def test_a_stream_that_trickles_is_given_up(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "GRACE_S", 0.0)

    async def trickle(digest: str, path: str, offset: int) -> AsyncGenerator[bytes, None]:
        del digest, path, offset
        while True:
            await asyncio.sleep(0)
            yield b""

    refused(StreamSource("peer b:2", trickle, 1000), part, "peer b:2: .* too slow: 0 of 10 bytes arrived in time")


def test_a_disk_that_takes_no_more_is_not_taken_for_a_bad_source() -> None:
    with FileIO("/dev/full", "w") as full, pytest.raises(DiskError, match="No space left on device"):
        fetch(Holder({MODEL: DATA}).source(), Part(full, FILE))


class Bucket:
    """A repository by URL; `opened` are the URLs of all that were opened."""

    opened: ClassVar[list[str]] = []
    contents: ClassVar[dict[str, bytes]] = {MODEL: DATA}

    def __init__(self, url: str) -> None:
        self.opened.append(url)

    def fetch(self, path: str, to: Path, most_bytes: int) -> None:
        if path not in self.contents:
            raise SourceError(f"s3://bucket/models/{path}: cannot be read: it is not there")
        assert most_bytes == len(DATA)
        to.write_bytes(self.contents[path])


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> type[Bucket]:
    monkeypatch.setattr(sources_module, "FsspecSource", Bucket)
    monkeypatch.setattr(Bucket, "opened", [])
    return Bucket


def test_a_repository_by_url_is_read_by_this_machine(part: Part, bucket: type[Bucket]) -> None:
    source, files = UriSource(), make_file_set(FILES.files, MODEL, "s3://bucket/models")
    for _ in range(2):
        asyncio.run(source.fetch(files, FILE, part))
        assert (part.path.read_bytes(), part.matches) == (DATA, True)
    assert bucket.opened == ["s3://bucket/models"]


def test_the_reason_why_a_repository_by_url_is_not_read(
    part: Part, bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(UriSource(), part, "URL: the model is in no repository by URL")
    for url in ("file:///etc", "ftp://host/models"):
        with pytest.raises(FileSourceError, match="URL: repository: expected a directory or a URL with s3"):
            asyncio.run(UriSource().fetch(make_file_set(FILES.files, MODEL, url), FILE, part))
    monkeypatch.setattr(bucket, "contents", {})
    with pytest.raises(FileSourceError, match=r"URL: s3://bucket/models/m/1/model.py: cannot be read: it is not there"):
        asyncio.run(UriSource().fetch(make_file_set(FILES.files, MODEL, "s3://bucket/models"), FILE, part))
    monkeypatch.setattr(bucket, "contents", {MODEL: DATA + b"more"})
    with pytest.raises(FileSourceError, match="expected 10 bytes, got 14"):
        asyncio.run(UriSource().fetch(make_file_set(FILES.files, MODEL, "s3://bucket/models"), FILE, part))


def test_repositories_that_stay_open_are_bounded(part: Part, bucket: type[Bucket]) -> None:
    source = UriSource()
    for number in range(UriSource.MAX_OPEN + 1):
        asyncio.run(source.fetch(make_file_set(FILES.files, MODEL, f"s3://bucket/{number}"), FILE, part))
    asyncio.run(source.fetch(make_file_set(FILES.files, MODEL, "s3://bucket/0"), FILE, part))
    assert bucket.opened[-1] == "s3://bucket/0"
    assert len(bucket.opened) == UriSource.MAX_OPEN + 2
