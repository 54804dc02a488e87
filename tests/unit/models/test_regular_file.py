import os
import socket
from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.regular_file import check_regular, is_there, printable, read_regular, read_text


def test_a_text_has_neither_its_byte_order_mark_nor_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xef\xbb\xbfcat\r\ndog\rfox\n")
    assert read_text(path) == "cat\ndog\nfox\n"


def test_a_link_is_read_and_one_that_leads_nowhere_or_in_a_circle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "c").symlink_to("b")
    assert read_text(tmp_path / "c") == "text"
    (tmp_path / "a").unlink()
    assert is_there(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"b: cannot be read: it is a link to a, which does not exist$"):
        read_text(tmp_path / "b")
    (tmp_path / "a").symlink_to("c")
    with pytest.raises(ConfigError, match="c: cannot be read: Too many levels of symbolic links"):
        check_regular(tmp_path / "c")


def test_nothing_but_regular_files_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, kind in {"fifo": "FIFO", "folder": "directory", "device": "device", "socket": "socket"}.items():
            with pytest.raises(ConfigError, match=f"{name}: expected a file, got a {kind}$"):
                read_regular(tmp_path / name)


def test_sizes_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match=r"config.pbtxt: cannot be read: expected at most 16777216 bytes$"):
        read_text(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("cat".encode("utf-16"), "expected UTF-8, got UTF-16"),
        (b"cat\nd\xf6g", "expected UTF-8, got the byte 0xf6 in line 2"),
    ],
)
def test_a_text_in_another_encoding_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"labels.txt: cannot be read: {message}$"):
        read_text(path)


def test_what_cannot_be_printed_becomes_escapes() -> None:
    assert printable("größer") == "größer"
    assert printable(os.fsdecode(b"mod\xe8le\n\x1b[2J\xe2\x80\xa8")) == "mod\\xe8le\\n\\x1b[2J\\u2028"
    assert printable("\ud83d") == "\\ud83d"
