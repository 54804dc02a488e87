"""JSON Schemas of the files that users write, for editors: by the structs that read them."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sluice.batcher.policies.base import AnyPolicySettings
from sluice.batcher.policies.registry import batch_policies
from sluice.gateway.config.server_config import ServerConfig
from sluice.models.pipelines.family import FamilyKeys, VariantKeys
from sluice.models.pipelines.file import (
    CombinerStage,
    CompeteKeys,
    FamilyStage,
    ModelStage,
    OutputKeys,
    PipelineKeys,
)
from sluice.models.pipelines.pipeline import When
from sluice.models.spelling import BOOLEANS
from sluice.models.units import unit_of
from sluice.mps.mig.layout_file import GpuLayout, LayoutKeys

_REFERENCE = "#/$defs/{name}"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SOURCE = {"type": "string", "pattern": r"^[^.]+\..+$", "description": "STAGE.TENSOR or request.TENSOR"}
_SOURCES: Mapping[str, Any] = {"type": "array", "items": _SOURCE}
_WITH_UNIT = {"type": "string", "pattern": r"^[0-9][0-9_]*(\.[0-9]*)? ?[A-Za-zµ]*$"}
_DEFAULT_TAGS = {"CpuPartition": "kind"}
"""The tags that may be left out, since they say what is meant without them."""


def server_schema() -> dict[str, Any]:
    """The schema of the configuration of a server."""
    policies = [policy.settings for policy in batch_policies().values()]
    defs = _defs(ServerConfig, *policies)
    for policy in policies:
        _optional(defs[policy.__name__], "name")
    return _schema(defs, "ServerConfig", "Configuration of a Sluice server")


def pipeline_schema() -> dict[str, Any]:
    """The schema of a `pipeline.yaml`."""
    defs = _defs(PipelineKeys, ModelStage, FamilyStage, CombinerStage, OutputKeys, When, CompeteKeys)
    stages = [_reference(each) for each in (ModelStage, FamilyStage, CombinerStage)]
    top = defs["PipelineKeys"]["properties"]
    top["stages"] = {"type": "object", "additionalProperties": {"anyOf": stages}}
    top["outputs"] = {"type": "object", "additionalProperties": {"anyOf": [_SOURCE, _reference(OutputKeys)]}}
    defs["OutputKeys"]["properties"]["from"] = {"anyOf": [_SOURCE, _SOURCES]}
    for stage in (ModelStage, FamilyStage, CombinerStage):
        properties = defs[stage.__name__]["properties"]
        properties["when"] = {"anyOf": [{"type": "null"}, _reference(When)]}
        if "compete" in properties:
            properties["compete"] = {"anyOf": [{"type": "null"}, _reference(CompeteKeys)]}
        if "inputs" in properties:
            properties["inputs"] = {"type": "object", "additionalProperties": _SOURCE}
        else:
            properties["of"] = _SOURCES
    return _schema(defs, "PipelineKeys", "Pipeline of Sluice")


def family_schema() -> dict[str, Any]:
    """The schema of a `family.yaml`."""
    defs = _defs(FamilyKeys, VariantKeys)
    defs["FamilyKeys"]["properties"]["variants"] = {"type": "array", "items": _reference(VariantKeys), "minItems": 1}
    return _schema(defs, "FamilyKeys", "Family of models of Sluice")


def partitions_schema() -> dict[str, Any]:
    """The schema of a file of GPU layouts, for `sluice partitions plan` and others."""
    defs = _defs(LayoutKeys, GpuLayout)
    defs["LayoutKeys"]["properties"]["gpus"] = {"type": "array", "items": _reference(GpuLayout), "minItems": 1}
    return _schema(defs, "LayoutKeys", "Layouts of GPUs for Sluice")


SCHEMAS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "server": server_schema,
    "pipeline": pipeline_schema,
    "family": family_schema,
    "partitions": partitions_schema,
}
"""The schemas by the kind of file."""


def _defs(*forms: type[msgspec.Struct]) -> dict[str, Any]:
    """The schemas of structs, and of those in them, by name."""
    _, defs = msgspec.json.schema_components(forms, schema_hook=_policy_schema, ref_template=_REFERENCE)
    for name, tag in _DEFAULT_TAGS.items():
        if name in defs:
            _optional(defs[name], tag)
    for schema in defs.values():
        for key, each in schema.get("properties", {}).items():
            schema["properties"][key] = _as_written(key, each)
    return defs


def _as_written(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value, with the texts that may stand for a number or a boolean."""
    types = {str(each.get("type")) for each in schema.get("anyOf", [schema])}
    if types & {"number", "integer"} and unit_of(key) is not None:
        return _or(schema, _WITH_UNIT)
    if "boolean" in types:
        return _or(schema, {"enum": list(BOOLEANS)})
    return schema


def _or(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    about = {key: value for key, value in schema.items() if key in ("default", "description")}
    rest = {key: value for key, value in schema.items() if key not in about}
    return {"anyOf": [*rest.get("anyOf", [rest]), other], **about}


def _policy_schema(form: type) -> dict[str, Any]:
    if form is not AnyPolicySettings:
        raise NotImplementedError(f"{form.__name__}: expected a type with a schema")
    names: dict[str, Any] = {"enum": list(batch_policies())}
    return {"anyOf": [names, *(_reference(policy.settings) for policy in batch_policies().values())]}


def _reference(form: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=form.__name__)}


def _optional(schema: dict[str, Any], key: str) -> None:
    schema["required"] = [each for each in schema.get("required", []) if each != key]


def _schema(defs: dict[str, Any], top: str, title: str) -> dict[str, Any]:
    """The schema of a whole file, which may be empty if no key is required."""
    root = defs.pop(top)
    types: Any = "object" if root.get("required") else ["object", "null"]
    return {"$schema": _DIALECT, **root, "title": title, "type": types, "$defs": defs}
