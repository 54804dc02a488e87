"""The manifests are valid, agree with each other, and with a real server of their configuration."""

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sluice.gateway.cli import serve
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.server_config import ServerConfig, convert_config
from sluice.gateway.server.limits import host_memory
from sluice.mps.partitions.partition import MpsPartition
from tests.support.gateway.server import gateway_server
from tests.support.manifests import PLACE, check, found, rendered
from tests.support.models.onnx_models import save_mlp
from tests.support.packaging import ROOT
from tests.support.tools import require_tool

OVERLAYS = sorted(path.name for path in (PLACE / "overlays").iterdir())
UNITS = {"Mi": 1, "Gi": 1 << 10}
END_S = 10
"""The time of a server for its last responses and its workers, after a drain."""


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    template: dict[str, Any] = found(objects, "Deployment")["spec"]["template"]
    return template


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    only: dict[str, Any]
    (only,) = pod(objects)["spec"]["containers"]
    return only


def configuration(objects: list[dict[str, Any]]) -> ServerConfig:
    """The configuration of the server in the pod, as it is mounted there."""
    volumes = {each["name"]: each for each in pod(objects)["spec"]["volumes"]}
    data = found(objects, "ConfigMap", volumes["config"]["configMap"]["name"])["data"]
    args = container(objects)["args"]
    path = Path(args[args.index("--config") + 1])
    mounts = {each["name"]: each["mountPath"] for each in container(objects)["volumeMounts"]}
    assert path.parent == Path(mounts["config"])
    return convert_config(yaml.safe_load(data[path.name]), path.name)


def probes(each: dict[str, Any]) -> Iterator[tuple[str, str, int | str]]:
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        if name in each:
            yield name, each[name]["httpGet"]["path"], each[name]["httpGet"]["port"]


@pytest.mark.parametrize("place", [*(f"overlays/{name}" for name in OVERLAYS), "kserve"])
def test_all_objects_are_valid(place: str) -> None:
    for each in rendered(place):
        check(each)


def test_a_misspelt_field_is_found() -> None:
    service = yaml.safe_load("{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {portz: []}}")
    with pytest.raises(kubernetes_validate.ValidationError, match="portz"):
        check(service)


def test_the_pod_for_copies_is_valid() -> None:
    loader = yaml.safe_load((PLACE / "loader.yaml").read_text())
    check(loader)
    (volume,) = loader["spec"]["volumes"]
    found(rendered("overlays/cpu"), "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_selectors_find_the_pods_and_names_lead_to_objects(name: str) -> None:
    objects = rendered(f"overlays/{name}")
    labels = pod(objects)["metadata"]["labels"].items()
    selectors = [found(objects, "Deployment")["spec"]["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    selectors += [found(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]]
    selectors += [found(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]]
    selectors += [each["labelSelector"]["matchLabels"] for each in pod(objects)["spec"]["topologySpreadConstraints"]]
    for selector in selectors:
        assert selector
        assert labels >= selector.items()
    claims = [
        each["persistentVolumeClaim"] for each in pod(objects)["spec"]["volumes"] if "persistentVolumeClaim" in each
    ]
    for claim in claims:
        found(objects, "PersistentVolumeClaim", claim["claimName"])
    for claim in pod(objects)["spec"].get("resourceClaims", ()):
        found(objects, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
        assert {"name": claim["name"]} in container(objects)["resources"]["claims"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_ports_have_the_names_and_numbers_of_the_configuration(name: str) -> None:
    objects = rendered(f"overlays/{name}")
    config = configuration(objects)
    ports = {each["name"]: each["containerPort"] for each in container(objects)["ports"]}
    assert ports == {"http": config.http_port, "grpc": config.grpc_port, "metrics": config.metrics_port}
    for service in (each for each in objects if each["kind"] == "Service"):
        assert all(
            each["targetPort"] in ports and each["port"] == ports[each["name"]] for each in service["spec"]["ports"]
        )
    allowed = {each["port"] for rule in found(objects, "NetworkPolicy")["spec"]["ingress"] for each in rule["ports"]}
    assert allowed == set(ports)
    assert {port for _, _, port in probes(container(objects))} == {"http"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_pod_is_left_alone_long_enough(name: str) -> None:
    objects = rendered(f"overlays/{name}")
    config, ready = configuration(objects), container(objects)["readinessProbe"]
    noticed_s = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    grace_s = pod(objects)["spec"]["terminationGracePeriodSeconds"]
    assert noticed_s < config.drain_delay_s < config.drain_timeout_s
    assert config.drain_timeout_s + END_S <= grace_s


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_configuration_is_sound_and_fits_into_the_memory(name: str) -> None:
    objects = rendered(f"overlays/{name}")
    config = configuration(objects)
    assert list(contradictions(config)) == []
    limit = container(objects)["resources"]["limits"]["memory"]
    cores = int(container(objects)["resources"]["limits"]["cpu"])
    partitions = configured_partitions(ServerConfig(partitions=1)) * cores
    needed = sum(host_memory(config, partitions, 0))
    assert needed < int(limit[:-2]) * UNITS[limit[-2:]]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_pod_has_few_rights_and_is_the_user_of_the_image(name: str) -> None:
    objects = rendered(f"overlays/{name}")
    spec, own = pod(objects)["spec"], container(objects)["securityContext"]
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Containerfile").read_text(), re.MULTILINE)
    assert {(str(spec["securityContext"]["runAsUser"]), str(spec["securityContext"]["runAsGroup"]))} == set(user)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {each["mountPath"] for each in container(objects)["volumeMounts"] if not each.get("readOnly")}
    assert written == {"/tmp", "/dev/shm"}


def test_the_overlays_ask_for_the_devices_that_their_partitions_need() -> None:
    devices = {
        name: [key for key in container(rendered(f"overlays/{name}"))["resources"]["limits"] if "nvidia" in key]
        for name in OVERLAYS
    }
    assert devices == {
        "cpu": [],
        "cpu-autoscaled": [],
        "gpu-mig": ["nvidia.com/mig-1g.10gb"],
        "gpu-mig-dra": [],
        "gpu-mps": ["nvidia.com/gpu"],
    }
    partitions = {name: configuration(rendered(f"overlays/{name}")).partitions for name in OVERLAYS}
    shares = partitions.pop("gpu-mps")
    assert set(partitions.values()) == {"auto"}
    assert isinstance(shares, tuple)
    assert all(isinstance(each, MpsPartition) and each.uuid == "auto" for each in shares)


def test_the_autoscaler_and_the_monitor_find_what_they_name() -> None:
    objects = rendered("overlays/cpu-autoscaled")
    scaled = found(objects, "ScaledObject")["spec"]
    assert "replicas" not in found(objects, "Deployment")["spec"]
    found(objects, "Deployment", scaled["scaleTargetRef"]["name"])
    monitor = found(objects, "ServiceMonitor")["spec"]
    services = [
        each
        for each in objects
        if each["kind"] == "Service"
        and each["metadata"]["labels"].items() >= monitor["selector"]["matchLabels"].items()
        and monitor["endpoints"][0]["port"] in {port["name"] for port in each["spec"]["ports"]}
    ]
    assert len(services) == 1
    (trigger,) = scaled["triggers"]
    assert f'service="{services[0]["metadata"]["name"]}"' in trigger["metadata"]["query"]


def test_probes_and_monitors_get_answers_from_a_server_of_that_configuration(tmp_path: Path) -> None:
    objects = rendered("overlays/cpu-autoscaled")
    config = configuration(objects)
    models = tmp_path / "models"
    save_mlp(models / "mlp" / "1" / "model.onnx", [4, 2])
    document = yaml.safe_load(found(objects, "ConfigMap", _config_map(objects))["data"]["sluice.yaml"])
    here = {**document, "repository": str(models), "metrics_port": 0, "host": "127.0.0.1", "drain_delay_s": 0}
    assert config.repository == "/models"
    with gateway_server(None, tmp_path, here) as server:
        for name, path, _ in probes(container(objects)):
            assert server.request("GET", path)[0] == 200, name
        (endpoint,) = found(objects, "ServiceMonitor")["spec"]["endpoints"]
        assert server.request("GET", endpoint["path"])[0] == 200


def test_the_runtime_of_kserve_has_options_of_sluice_serve_and_ports_of_its_own() -> None:
    objects = rendered("kserve")
    (own,) = found(objects, "ServingRuntime")["spec"]["containers"]
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    command, *arguments = own["args"]
    assert command == "serve"
    options = parser.parse_args(arguments)
    options.environment = {}
    config = serve.effective_config(options).config
    assert [each["containerPort"] for each in own["ports"]] == [config.http_port]
    assert {port for _, _, port in probes(own)} == {config.http_port}
    service = found(objects, "InferenceService", "digits")["spec"]["predictor"]
    assert config.drain_delay_s < config.drain_timeout_s <= service["terminationGracePeriodSeconds"] - END_S
    formats = {each["name"] for each in found(objects, "ServingRuntime")["spec"]["supportedModelFormats"]}
    assert (service["model"]["runtime"], service["model"]["modelFormat"]["name"] in formats) == ("sluice", True)


def _config_map(objects: list[dict[str, Any]]) -> str:
    (name,) = (each["metadata"]["name"] for each in objects if each["kind"] == "ConfigMap")
    return str(name)


@pytest.mark.parametrize(
    ("series", "pods"),
    [
        # The first pod is needed to a half for its tighter pipeline, and the second one is overloaded twice.
        ({("a", "tight"): 2.0, ("a", "easy"): 4.0, ("b", "tight"): 0.5}, 2.5),
        ({}, 0.0),
    ],
)
def test_the_autoscaler_adds_up_how_much_of_each_pod_is_needed(
    series: dict[tuple[str, str], float], pods: float, tmp_path: Path
) -> None:
    (trigger,) = found(rendered("overlays/cpu-autoscaled"), "ScaledObject")["spec"]["triggers"]
    rules, unit = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": []}]}))
    name = 'sluice_pipeline_headroom{{service="sluice", pod="{}", pipeline="{}"}}'
    expected = {"labels": "{}", "value": pods}
    test = {
        "interval": "15s",
        "input_series": [{"series": name.format(*labels), "values": f"{value}x4"} for labels, value in series.items()],
        "promql_expr_test": [{"expr": trigger["metadata"]["query"], "eval_time": "1m", "exp_samples": [expected]}],
    }
    unit.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
    done = subprocess.run(
        [require_tool("promtool"), "test", "rules", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_autoscaler_asks_for_metrics_that_there_are() -> None:
    (trigger,) = found(rendered("overlays/cpu-autoscaled"), "ScaledObject")["spec"]["triggers"]
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = re.findall(r"sluice_\w+", trigger["metadata"]["query"])
    assert names
    assert [name for name in names if f"| `{name}` |" not in reference] == []
