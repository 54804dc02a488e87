"""Targets that do not speak V2 get the bytes of files, posted to one path."""

from pathlib import Path

import pytest

from sluice.loadgen.records.bodies import read_bodies
from sluice.loadgen.run.runner import run
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.target.plain import PlainTarget
from sluice.models.errors import ConfigError


def test_a_request_is_the_path_the_headers_and_the_bytes_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"\x00\xffsecond\r\n\x00")
    (tmp_path / "a").write_bytes(b"first")
    samples = read_bodies(str(tmp_path))
    target = PlainTarget("http://localhost:8000", "/predict?fast=1", 1, [("content-type", "image/x")])
    contents = [target.encode(TargetRequest("m", samples.tensors(number))).content for number in range(len(samples))]
    head = b"POST /predict?fast=1 HTTP/1.1\r\nHost: localhost:8000\r\ncontent-type: image/x\r\n"
    assert contents == [
        head + b"Content-Length: 5\r\n\r\nfirst",
        head + b"Content-Length: 11\r\n\r\n\x00\xffsecond\r\n\x00",
    ]


def test_one_file_is_one_sample(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"{}")
    assert len(read_bodies(str(tmp_path / "body"))) == 1


@pytest.mark.parametrize(
    ("path", "bodies", "message"),
    [
        ("/predict", "", "--path and --bodies: expected both or none, got '/predict' and ''"),
        ("predict", "{folder}", "--path: expected a path such as /predict, percent-encoded, got 'predict'"),
        ("/a b", "{folder}", "--path: expected a path such as /predict, percent-encoded, got '/a b'"),
        ("/predict", "{folder}", "--bodies {folder}: expected a file, or a folder with one file a body; it has none"),
        ("/predict", "{folder}/none", "--bodies {folder}/none: cannot be read: No such file or directory"),
    ],
)
def test_unusable_paths_and_bodies_are_refused(path: str, bodies: str, message: str, tmp_path: Path) -> None:
    config = RunConfig(
        target="http://127.0.0.1:9",
        model="m",
        rate=1.0,
        queries=1,
        path=path,
        bodies=bodies.format(folder=tmp_path),
    )
    with pytest.raises(ConfigError) as refused:
        run(config)
    assert str(refused.value) == message.format(folder=tmp_path)


def test_bodies_are_for_targets_over_http(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"{}")
    config = RunConfig(
        target="grpc://127.0.0.1:9", model="m", rate=1.0, queries=1, path="/predict", bodies=str(tmp_path / "body")
    )
    with pytest.raises(ConfigError, match=r"--path: requires a target over HTTP, got grpc://127.0.0.1:9"):
        run(config)
