"""The manifests for Kubernetes, as kubectl would apply them."""

import json
import subprocess
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests.support.packaging import ROOT
from tests.support.tools import require_tool

PLACE = ROOT / "deploy" / "k8s"
VERSION = "1.34"
"""The oldest version of Kubernetes with all kinds of objects."""

_CUSTOM: Mapping[str, Any] = json.loads((ROOT / "tests" / "deploy" / "custom_schemas.json").read_text())
"""Schemas of custom resources: only the fields that are used here, and no others."""

Objects = list[dict[str, Any]]


@cache
def rendered(place: str) -> Objects:
    """The objects of a folder, as kubectl would apply them."""
    done = subprocess.run(
        [require_tool("kubectl"), "kustomize", str(PLACE / place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def found(objects: Objects, kind: str, name: str = "sluice") -> dict[str, Any]:
    """The only object of that kind and name."""
    (one,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return one


def check(each: dict[str, Any]) -> None:
    """Raise ValidationError unless an object is valid, strictly: no field is unknown."""
    kind = f"{each['apiVersion']} {each['kind']}"
    if kind in _CUSTOM:
        assert set(each) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(each["spec"], _CUSTOM[kind])
    else:
        kubernetes_validate.validate(each, VERSION, strict=True)
