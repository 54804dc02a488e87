"""The page on clusters names files, overlays, options and settings that there are, and sentences that are logged."""

import argparse
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from sluice.gateway.cli import config, doctor, partitions, serve, worker
from sluice.gateway.config.remote_settings import PartitionSettings
from sluice.gateway.config.server_config import convert_config
from tests.support.manifests import PLACE
from tests.support.packaging import ROOT

PAGE = (ROOT / "docs" / "operate" / "cluster.md").read_text()
COMMANDS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "worker": worker.add_arguments,
    "serve": serve.add_arguments,
    "doctor": doctor.add_arguments,
    "config": config.add_arguments,
    "partitions": partitions.add_arguments,
}


def commands() -> list[list[str]]:
    """The commands in the blocks for a shell, as words."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def documents() -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def test_the_commands_of_sluice_have_their_options() -> None:
    found = [words[words.index("sluice") + 1 :] for words in commands() if "sluice" in words and "create" not in words]
    assert {words[0] for words in found} == set(COMMANDS)
    for words in found:
        parser = argparse.ArgumentParser()
        COMMANDS[words[0]](parser)
        parser.parse_args(words[1:])


def test_every_overlay_is_listed_and_no_other() -> None:
    overlays = {path.name for path in (PLACE / "cluster" / "overlays").iterdir()}
    (table,) = re.findall(r"^\| Overlay .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert overlays == set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))


def test_the_settings_are_those_of_a_gateway() -> None:
    whole = next(each for each in documents() if "repository" in each)
    settings = convert_config(whole, "sluice.yaml").partitions
    assert isinstance(settings, PartitionSettings)
    secure = next(each for each in documents() if set(each) == {"partitions"})
    partitions = {**whole["partitions"], **secure["partitions"]}
    both = convert_config({**whole, "partitions": partitions}, "sluice.yaml").partitions
    assert isinstance(both, PartitionSettings)
    assert both.tls is not None
    assert both.tls.server_name == "sluice-worker"


@pytest.mark.parametrize(
    "sentence",
    [
        "did not answer within",
        "wants a key",
        "the key is wrong",
        "the gateway has the version",
        "is a partition of the kind",
        "has the worker",
        "the other end closed the connection",
        "lets other machines run models here",
        "more workers than partitions",
        "workers cannot be looked up; the known ones stay",
        "worker listens",
    ],
)
def test_the_sentences_of_troubles_are_those_of_the_code(sentence: str) -> None:
    assert sentence in PAGE
    sources = [*(ROOT / "gateway").rglob("*.py")]
    assert any(sentence in path.read_text() for path in sources)
