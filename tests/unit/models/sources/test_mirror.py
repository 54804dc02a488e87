import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from sluice.models.repository.stamps import file_stamps
from sluice.models.sources import mirror as mirror_module
from sluice.models.sources.mirror import Mirror, mirror_directory
from sluice.models.sources.source import EXTRAS, FsspecSource, RemoteFile, SourceError, check_url


class Bucket:
    """A source in memory: `files_` has contents by path, `torn` the paths whose reading ends early."""

    url = "s3://bucket/models"

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.torn: set[str] = set()
        self.fetched: list[str] = []
        self.down = False
        self.while_fetching: dict[str, bytes] = {}
        self.after_fetching: Callable[[], object] = lambda: None

    def files(self) -> Mapping[str, RemoteFile]:
        if self.down:
            raise SourceError(f"{self.url}: cannot be read: no route to host")
        return {path: RemoteFile(hashlib.md5(data).hexdigest(), len(data)) for path, data in self.contents.items()}

    def fetch(self, path: str, to: Path, most_bytes: int) -> None:
        self.fetched.append(path)
        data = self.contents[path]
        to.write_bytes(data[:-1] if path in self.torn else data)
        self.after_fetching()
        self.contents.update(self.while_fetching)


def wrong(directory: Path, loaded: Collection[str] = ()) -> dict[str, str]:
    """Models whose file is not what a model begins with."""
    files = {entry.name: entry / "1" / "model" for entry in directory.iterdir()}
    reasons = {name: f"{file}: no model" for name, file in files.items() if not file.read_bytes().startswith(b"good")}
    return reasons | {
        name: f"{files[name]}: cannot be loaded" for name in loaded if files[name].read_bytes() == b"good to read"
    }


@pytest.fixture
def bucket() -> Bucket:
    made = Bucket()
    made.contents = {"m/1/model": b"good one", "m/config": b"config", "n/1/model": b"good two", "README": b"top"}
    return made


@pytest.fixture
def mirror(bucket: Bucket, tmp_path: Path) -> Mirror:
    return Mirror(bucket, tmp_path / "mirror", wrong)


def served(mirror: Mirror) -> dict[str, bytes]:
    return {
        str(path.relative_to(mirror.repository)): path.read_bytes()
        for entry in sorted(mirror.repository.iterdir())
        for path in sorted(entry.rglob("*"))
        if path.is_file()
    }


def test_the_progress_of_a_copy_is_in_bytes_of_what_has_changed(bucket: Bucket, mirror: Mirror) -> None:
    seen: list[tuple[int, int]] = []
    bucket.after_fetching = lambda: seen.append((mirror.copied_bytes, mirror.bytes_to_copy))
    mirror.refresh()
    assert seen == [(8, 22), (14, 22), (22, 22)]
    seen.clear()
    bucket.contents |= {"m/2/model": b"good three"}
    mirror.refresh()
    assert seen == [(10, 10)]


def test_a_source_is_copied_and_only_what_has_changed_is_copied_again(bucket: Bucket, mirror: Mirror) -> None:
    assert mirror.is_empty
    assert mirror.refresh() == {}
    assert not mirror.is_empty
    assert served(mirror) == {path: data for path, data in bucket.contents.items() if "/" in path}
    bucket.fetched.clear()
    stamps = file_stamps(mirror.repository / "m")
    bucket.contents |= {"m/2/model": b"good three"}
    assert mirror.refresh() == {}
    assert bucket.fetched == ["m/2/model"]
    now = file_stamps(mirror.repository / "m")
    assert {name for name in now if now[name] != stamps.get(name)} == {"2"}
    del bucket.contents["n/1/model"]
    bucket.fetched.clear()
    assert mirror.refresh() == {}
    assert (bucket.fetched, sorted(path.name for path in mirror.repository.iterdir())) == ([], ["m"])


def test_a_broken_upload_does_not_replace_what_is_served(bucket: Bucket, mirror: Mirror) -> None:
    mirror.refresh()
    bucket.contents |= {"m/1/model": b"bad", "n/1/model": b"good again"}
    assert mirror.refresh() == {"m": "s3://bucket/models/m/1/model: no model"}
    assert served(mirror)["m/1/model"] == b"good one"
    assert served(mirror)["n/1/model"] == b"good again"
    bucket.fetched.clear()
    assert mirror.refresh() == {}  # it is not tried again until it changes
    assert bucket.fetched == []
    bucket.contents["m/1/model"] = b"good at last"
    assert mirror.refresh() == {}
    assert served(mirror)["m/1/model"] == b"good at last"


def test_an_upload_that_reads_well_but_does_not_load_replaces_nothing(bucket: Bucket, mirror: Mirror) -> None:
    mirror.refresh()
    bucket.contents["m/1/model"] = b"good to read"
    assert mirror.refresh() == {"m": "s3://bucket/models/m/1/model: cannot be loaded"}
    mirror.verify()
    assert served(mirror)["m/1/model"] == b"good one"
    assert "m" in mirror.refresh()  # it is tried again after a start
    assert mirror.refresh() == {}


def test_a_new_entry_that_is_broken_is_there_for_the_server_to_say_so(bucket: Bucket, mirror: Mirror) -> None:
    bucket.contents["m/1/model"] = b"bad"
    assert mirror.refresh() == {}
    assert served(mirror)["m/1/model"] == b"bad"


def test_what_was_not_read_whole_or_changed_meanwhile_is_not_served(bucket: Bucket, mirror: Mirror) -> None:
    bucket.torn.add("m/config")
    bucket.while_fetching = {"n/config": b"more"}
    assert mirror.refresh() == {
        "m": "s3://bucket/models/m/config: expected 6 bytes, got 5",
        "n": "s3://bucket/models/n: it is being changed",
    }
    assert served(mirror) == {}
    bucket.torn.clear()
    assert mirror.refresh() == {}
    assert sorted(served(mirror)) == ["m/1/model", "m/config", "n/1/model", "n/config"]


def test_a_source_that_cannot_be_read_leaves_its_copy(bucket: Bucket, mirror: Mirror) -> None:
    mirror.refresh()
    before = served(mirror)
    bucket.down = True
    mirror.verify()
    with pytest.raises(SourceError, match="no route to host"):
        mirror.refresh()
    assert served(mirror) == before


def test_a_copy_that_was_damaged_here_is_not_served_and_is_made_again(bucket: Bucket, mirror: Mirror) -> None:
    mirror.refresh()
    (mirror.repository / "m" / "1" / "model").write_bytes(b"good eno")
    mirror.verify()
    assert sorted(served(mirror)) == ["n/1/model"]
    mirror.refresh()
    assert served(mirror)["m/1/model"] == b"good one"


def test_a_copy_that_was_cut_short_or_lost_its_state_is_made_again(bucket: Bucket, mirror: Mirror) -> None:
    mirror.refresh()
    directory = mirror.repository.parent
    (directory / "copy-x").write_bytes(b"half")
    (directory / "state.json").write_text(json.dumps({"url": 3}))
    mirror.refresh()
    assert sorted(served(mirror)) == ["m/1/model", "m/config", "n/1/model"]
    assert sorted(path.name for path in directory.iterdir()) == [
        "contents",
        "lock",
        "repository",
        "revisions",
        "state.json",
    ]


def test_what_is_not_served_any_more_is_removed_except_the_revision_before(bucket: Bucket, mirror: Mirror) -> None:
    for text in (b"good 1", b"good 2", b"good 3", b"good 4"):
        bucket.contents["m/1/model"] = text
        mirror.refresh()
    contents = mirror.repository.parent / "contents"
    assert {path.read_bytes() for path in contents.iterdir()} == {b"good 3", b"good 4", b"config", b"good two"}


def test_paths_that_lead_elsewhere_are_passed_over(bucket: Bucket, mirror: Mirror) -> None:
    bucket.contents |= {"m/../../x": b"", "m//y": b"", ".git/HEAD": b"", "m/a\\b": b"", "m/\n": b"", "../z/1": b""}
    mirror.refresh()
    assert sorted(served(mirror)) == ["m/1/model", "m/config", "n/1/model"]


def test_sizes_are_bounded_before_anything_is_copied(
    bucket: Bucket, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_module, "SPARE_BYTES", 1 << 60)
    assert "too large" in mirror.refresh()["m"]
    monkeypatch.setattr(mirror_module, "MAX_FILES", 3)
    with pytest.raises(SourceError, match="expected at most 3 files, got 4"):
        mirror.refresh()
    assert bucket.fetched == []


def test_a_directory_that_cannot_be_written_is_named(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"its copy cannot be kept in .*file/m: .*expected a directory"):
        Mirror(bucket, tmp_path / "file" / "m", wrong).refresh()


def test_each_url_has_a_directory_of_its_own(tmp_path: Path) -> None:
    urls = ["s3://a/b", "s3://a_b", "gs://a/b", "s3://a/b/c"]
    assert len({mirror_directory(url, tmp_path) for url in urls}) == len(urls)
    assert mirror_directory("s3://a/b/", tmp_path) == mirror_directory("s3://a/b", tmp_path)


def test_urls_are_checked() -> None:
    for scheme in EXTRAS:
        check_url(f"{scheme}://host/models")
    for url in ("ftp://host/models", "s3://", "file:///models"):
        with pytest.raises(ValueError, match="expected a directory or a URL with s3, gs, az"):
            check_url(url)
    with pytest.raises(ValueError, match="without a password"):
        check_url("https://me:secret@host/models")


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(SourceError, match=r"expected the extra 's3': pip install 'sluice-gateway\[s3\]'"):
        FsspecSource("s3://bucket/models").files()
