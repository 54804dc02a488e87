"""The page on deployment names files, stages, arguments and options that there are."""

import argparse
import re
import shlex
import tomllib

from sluice.gateway.cli import serve
from tests.support.packaging import ROOT

PAGE = (ROOT / "docs" / "operate" / "deploy.md").read_text()
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()


def commands() -> list[list[str]]:
    """The commands in the blocks for a shell, as words."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_files_exist() -> None:
    named = {word for words in commands() for word in words if word.startswith("deploy/")}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_overlays_are_listed_with_what_they_serve() -> None:
    overlays = {path.name for path in (ROOT / "deploy" / "k8s" / "overlays").iterdir()}
    assert overlays <= set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))


def test_targets_are_stages_and_build_arguments_are_declared() -> None:
    targets = {words[words.index("--target") + 1] for words in commands() if "--target" in words}
    assert targets == {"cpu", "gpu"}
    assert targets <= set(re.findall(r"^FROM .* AS (\S+)$", CONTAINERFILE, re.MULTILINE))
    (table,) = re.findall(r"^\| Build argument .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    arguments = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([A-Z]+)`", row.split("|")[1])
    }
    assert arguments == set(re.findall(r"^ARG ([A-Z]+)=", CONTAINERFILE, re.MULTILINE))


def test_the_label_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.findall(r"^ARG VERSION=(.*)$", CONTAINERFILE, re.MULTILINE) == [project["version"]]


def test_the_containers_are_started_with_options_of_sluice_serve() -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    started = [
        words[words.index("serve") + 1 :] for words in commands() if words[:2] == ["docker", "run"] and "serve" in words
    ]
    assert len(started) == 2
    for arguments in started:
        assert parser.parse_args(arguments).repository == ["/models"]
