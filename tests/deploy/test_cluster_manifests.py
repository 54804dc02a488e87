"""The manifests of gateways with workers in other pods are valid, and agree with each other and with the product."""

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sluice.gateway.cli import worker
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.remote_settings import PartitionSettings, RemoteClass
from sluice.gateway.config.server_config import ServerConfig, convert_config, convert_partition
from sluice.gateway.worker_server.settings import WorkerSettings
from sluice.models.conversion import NO_LINES, convert
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import MpsPartition
from tests.support.gateway.worker_server import worker_server
from tests.support.manifests import PLACE, Objects, check, found, rendered
from tests.support.packaging import ROOT
from tests.support.tools import require_tool

OVERLAYS = sorted(path.name for path in (PLACE / "cluster" / "overlays").iterdir())
CLASSES = sorted(path.name for path in (PLACE / "cluster" / "classes").iterdir())
END_S = 10
"""The time of a server for its last responses, and of a worker server for its worker, after a drain."""
MOUNTED = {"sluice-gateway-tls", "sluice-worker-key", "sluice-worker-tls"}
"""Secrets that are made outside, by hand or by cert-manager."""

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def objects_of(name: str) -> Objects:
    return rendered(f"cluster/overlays/{name}")


def workers(objects: Objects) -> dict[str, dict[str, Any]]:
    """The StatefulSets, by class."""
    return {
        each["metadata"]["labels"]["sluice-class"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"
    }


def pods(objects: Objects) -> list[dict[str, Any]]:
    kinds = ("Deployment", "StatefulSet")
    return [each["spec"]["template"] for each in objects if each["kind"] in kinds]


def container(template: dict[str, Any]) -> dict[str, Any]:
    only: dict[str, Any]
    (only,) = template["spec"]["containers"]
    return only


def file_of(objects: Objects, template: dict[str, Any], path: Path) -> str:
    """The contents of a file that a ConfigMap puts into a pod."""
    mounts = {each["mountPath"]: each["name"] for each in container(template)["volumeMounts"]}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    config_map = volumes[mounts[str(path.parent)]]["configMap"]["name"]
    contents: str = found(objects, "ConfigMap", config_map)["data"][path.name]
    return contents


def configuration(objects: Objects) -> ServerConfig:
    template = found(objects, "Deployment")["spec"]["template"]
    args = container(template)["args"]
    path = Path(args[args.index("--config") + 1])
    return convert_config(yaml.safe_load(file_of(objects, template, path)), path.name)


def remote_settings(objects: Objects) -> PartitionSettings:
    settings = configuration(objects).partitions
    assert isinstance(settings, PartitionSettings)
    return settings


def classes(objects: Objects) -> dict[str, RemoteClass]:
    return {each.name: each for each in remote_settings(objects).classes}


def worker_options(workers_of: dict[str, Any]) -> argparse.Namespace:
    """The options of the command in the pod; the variables of its environment stand for themselves."""
    parser = argparse.ArgumentParser()
    worker.add_arguments(parser)
    own = container(workers_of["template"])
    assert own["command"] == ["sluice", "worker"]
    used = set(re.findall(r"\$\((\w+)\)", " ".join(own["args"])))
    assert used == {each["name"] for each in own["env"]}
    return parser.parse_args(own["args"])


def worker_settings(objects: Objects, workers_of: dict[str, Any]) -> WorkerSettings:
    """The settings of a worker server, with a partition that stands for that of its options."""
    options = worker_options(workers_of)
    document = yaml.safe_load(file_of(objects, workers_of["template"], options.config))
    assert ("partition" in document) is (options.cores is None and options.gpu is None)
    if partition := document.get("partition"):
        document["partition"] = convert_partition(partition, "worker.yaml", "partition", NO_LINES)
    else:
        document["partition"] = {"kind": "cpu", "name": "a", "cores": [0]}
    return convert(document, WorkerSettings, "worker.yaml")


def labels_of(template: dict[str, Any]) -> set[tuple[str, str]]:
    return set(template["metadata"]["labels"].items())


@every_overlay
def test_all_objects_are_valid(name: str) -> None:
    for each in objects_of(name):
        check(each)


def test_a_misspelt_field_of_a_certificate_is_found() -> None:
    certificate = found(objects_of("cpu-mtls"), "Certificate", "sluice-worker")
    with pytest.raises(jsonschema.ValidationError, match="dnsName"):
        check({**certificate, "spec": {**certificate["spec"], "dnsName": "a"}})


def test_every_class_is_in_an_overlay() -> None:
    assert sorted({name for overlay in OVERLAYS for name in workers(objects_of(overlay))}) == CLASSES


@every_overlay
def test_the_gateways_know_the_classes_of_workers_and_find_their_service(name: str) -> None:
    objects = objects_of(name)
    sets, settings = workers(objects), classes(objects)
    assert sets.keys() == settings.keys()
    for each, one in settings.items():
        assert one.dns is not None
        service = found(objects, "Service", one.dns.name)["spec"]
        assert service["clusterIP"] == "None"
        assert sets[each]["serviceName"] == one.dns.name
        (port,) = service["ports"]
        ports = {port["name"]: port["containerPort"] for port in container(sets[each]["template"])["ports"]}
        assert (one.dns.port, port["port"]) == (ports[port["targetPort"]],) * 2
        assert labels_of(sets[each]["template"]) >= set(service["selector"].items())
        assert sets[each].get("replicas", 0) <= one.dns.max
        assert worker_settings(objects, sets[each]).listen == f"0.0.0.0:{one.dns.port}"


@every_overlay
def test_selectors_find_the_pods_of_one_kind_only(name: str) -> None:
    objects = objects_of(name)
    labels = {
        each["metadata"]["name"]: labels_of(each["spec"]["template"])
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    for each in objects:
        if each["kind"] not in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            continue
        selector = set(each["spec"]["selector"]["matchLabels"].items())
        assert [name for name, value in labels.items() if value >= selector] == [each["metadata"]["name"]]


@every_overlay
def test_gateways_may_reach_workers_and_dns_and_nobody_else_reaches_workers(name: str) -> None:
    objects = objects_of(name)
    gateways = found(objects, "Deployment")["spec"]["template"]
    to_workers = found(objects, "NetworkPolicy", "sluice-worker")["spec"]
    of_gateways = found(objects, "NetworkPolicy")["spec"]
    assert labels_of(gateways) >= set(of_gateways["podSelector"]["matchLabels"].items())
    (rule,) = to_workers["ingress"]
    allowed = [set(each["podSelector"]["matchLabels"].items()) for each in rule["from"]]
    outside = {("app.kubernetes.io/name", "other")}
    for each in workers(objects).values():
        own = labels_of(each["template"])
        assert own >= set(to_workers["podSelector"]["matchLabels"].items())
        assert any(labels_of(gateways) >= selector for selector in allowed)
        assert any(own >= selector for selector in allowed)
        (port,) = container(each["template"])["ports"]
        assert rule["ports"] == [{"port": port["name"]}]
        # By number: not every network plug-in knows the names of ports of other pods.
        (out,) = [rule for rule in of_gateways["egress"] if rule["ports"] == [{"port": port["containerPort"]}]]
        assert own >= set(out["to"][0]["podSelector"]["matchLabels"].items())
    assert not any(outside >= selector for selector in allowed)
    ports = {port["port"] for rule in of_gateways["egress"] for port in rule["ports"]}
    assert ports == {9001, 53}


@every_overlay
def test_names_lead_to_objects(name: str) -> None:
    objects = objects_of(name)
    for template in pods(objects):
        for volume in template["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                found(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
            if "secret" in volume:
                assert volume["secret"]["secretName"] in MOUNTED
        for claim in template["spec"].get("resourceClaims", ()):
            found(objects, "ResourceClaimTemplate", claim["resourceClaimTemplateName"])
            assert {"name": claim["name"]} in container(template)["resources"]["claims"]
    made = {each["spec"]["secretName"] for each in objects if each["kind"] == "Certificate"}
    for template in pods(objects):
        secrets = {each["secret"]["secretName"] for each in template["spec"]["volumes"] if "secret" in each}
        assert secrets - {"sluice-worker-key"} <= made


@every_overlay
def test_files_that_the_settings_name_are_mounted(name: str) -> None:
    objects = objects_of(name)
    settings = remote_settings(objects)
    gateways = found(objects, "Deployment")["spec"]["template"]
    tls = settings.tls
    named = [settings.key_file] + ([] if tls is None else [tls.ca, tls.certificate, tls.private_key])
    assert_mounted(gateways, named)
    for each in workers(objects).values():
        own, options = worker_settings(objects, each), worker_options(each)
        files = [options.tls_ca, options.tls_certificate, options.tls_private_key]
        assert_mounted(each["template"], [own.key_file, f"{own.cache}/a", *(files if tls is not None else [])])
        assert tls is not None or files == [None] * 3


def assert_mounted(template: dict[str, Any], files: list[str | None]) -> None:
    mounted = {each["mountPath"] for each in container(template)["volumeMounts"]}
    assert {str(Path(str(each)).parent) for each in files} <= mounted


@every_overlay
def test_pods_are_left_alone_long_enough(name: str) -> None:
    objects = objects_of(name)
    config = configuration(objects)
    gateways = found(objects, "Deployment")["spec"]["template"]
    ready = container(gateways)["readinessProbe"]
    noticed_s = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    assert noticed_s < config.drain_delay_s < config.drain_timeout_s
    assert config.drain_timeout_s + END_S <= gateways["spec"]["terminationGracePeriodSeconds"]
    for each in workers(objects).values():
        drain_s = worker_settings(objects, each).drain_s
        assert drain_s + END_S <= each["template"]["spec"]["terminationGracePeriodSeconds"]
        assert each["minReadySeconds"] >= 10, "the gateways have to load models before the next worker goes"
        assert each["podManagementPolicy"] == "Parallel"


@every_overlay
def test_the_probes_of_workers_need_neither_key_nor_certificate(name: str) -> None:
    objects = objects_of(name)
    for each in workers(objects).values():
        own, options = container(each["template"]), worker_options(each)
        (port,) = own["ports"]
        expected: dict[str, Any] = {"grpc": {"port": port["containerPort"]}}
        if options.tls_ca is not None:
            expected = {"exec": {"command": ["test", "-e", str(options.ready_file)]}}
            assert_mounted(each["template"], [str(options.ready_file)])
        for probe in ("startupProbe", "readinessProbe"):
            assert expected.items() <= own[probe].items()
        assert own["livenessProbe"]["tcpSocket"]["port"] == port["name"]


def test_gateways_and_workers_expect_the_name_in_the_certificate_of_workers() -> None:
    objects = objects_of("cpu-mtls")
    (name,) = found(objects, "Certificate", "sluice-worker")["spec"]["dnsNames"]
    tls = remote_settings(objects).tls
    assert tls is not None
    assert tls.server_name == name
    assert {worker_options(each).tls_server_name for each in workers(objects).values()} == {name}


@every_overlay
def test_the_pods_have_few_rights_and_are_the_user_of_the_image(name: str) -> None:
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "Containerfile").read_text(), re.MULTILINE)
    for template in pods(objects_of(name)):
        spec = template["spec"]
        assert {(str(spec["securityContext"]["runAsUser"]), str(spec["securityContext"]["runAsGroup"]))} == set(user)
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert container(template)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@every_overlay
def test_the_configuration_of_the_gateways_is_sound(name: str) -> None:
    assert list(contradictions(configuration(objects_of(name)))) == []


def test_workers_ask_for_the_devices_of_their_class() -> None:
    devices: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for overlay in OVERLAYS:
        objects = objects_of(overlay)
        for name, each in workers(objects).items():
            limits = container(each["template"])["resources"]["limits"]
            devices[name] = [key for key in limits if "nvidia" in key]
            kinds[name] = classes(objects)[name].profile_kind
    assert devices == {"cpu": [], "mig": ["nvidia.com/mig-1g.10gb"], "mig-dra": [], "mps": ["nvidia.com/gpu.shared"]}
    assert kinds == {"cpu": "cpu2", "mig": "mig-1g.10gb", "mig-dra": "mig-1g.10gb", "mps": "mps-25"}
    claim = found(objects_of("gpu-dra"), "ResourceClaimTemplate", "sluice-instance-mig-dra")["spec"]["spec"]["devices"]
    assert '"1g.10gb"' in claim["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"]


def test_the_workers_on_cores_have_as_many_as_their_pod() -> None:
    objects = objects_of("cpu")
    own = workers(objects)["cpu"]
    cores = container(own["template"])["resources"]["limits"]["cpu"]
    assert worker_options(own).cores == f"auto:{cores}"
    assert classes(objects)["cpu"].kind == f"cpu{cores}"


def test_the_shares_of_a_gpu_are_as_large_as_their_class_says() -> None:
    objects = objects_of("gpu")
    partition = worker_settings(objects, workers(objects)["mps"]).partition
    assert isinstance(partition, MpsPartition)
    assert (partition.profile_kind, partition.uuid, partition.pipes) == (classes(objects)["mps"].kind, "auto", "auto")


def test_workers_on_shares_of_the_device_plugin_leave_its_shared_memory_alone() -> None:
    own = workers(objects_of("gpu"))["mps"]["template"]
    assert "/dev/shm" not in {each["mountPath"] for each in container(own)["volumeMounts"]}
    assert "shared-memory" not in {each["name"] for each in own["spec"]["volumes"]}


def test_the_autoscaler_and_the_monitor_find_what_they_name() -> None:
    objects = objects_of("cpu-autoscaled")
    scaled = found(objects, "ScaledObject", "sluice-worker-cpu")["spec"]
    target = found(objects, scaled["scaleTargetRef"]["kind"], scaled["scaleTargetRef"]["name"])["spec"]
    assert "replicas" not in target
    (one,) = classes(objects).values()
    assert one.dns is not None
    assert scaled["maxReplicaCount"] == one.dns.max
    (trigger,) = scaled["triggers"]
    monitor = found(objects, "ServiceMonitor")["spec"]
    services = [
        each
        for each in objects
        if each["kind"] == "Service"
        and each["metadata"]["labels"].items() >= monitor["selector"]["matchLabels"].items()
        and monitor["endpoints"][0]["port"] in {port["name"] for port in each["spec"]["ports"]}
    ]
    assert len(services) == 1
    assert f'service="{services[0]["metadata"]["name"]}", class="{one.name}"' in trigger["metadata"]["query"]


def test_the_autoscaler_adds_up_what_all_gateways_want(tmp_path: Path) -> None:
    (trigger,) = found(objects_of("cpu-autoscaled"), "ScaledObject", "sluice-worker-cpu")["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "1"
    series = 'sluice_partitions_wanted{{service="sluice", class="{}", pod="{}"}}'
    values = {("cpu", "a"): 3, ("cpu", "b"): 2, ("other", "a"): 7}
    expected = {"labels": "{}", "value": 5}
    rules, unit = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": []}]}))
    test = {
        "interval": "5s",
        "input_series": [{"series": series.format(*key), "values": f"{value}x4"} for key, value in values.items()],
        "promql_expr_test": [{"expr": trigger["metadata"]["query"], "eval_time": "20s", "exp_samples": [expected]}],
    }
    unit.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
    done = subprocess.run(
        [require_tool("promtool"), "test", "rules", str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| `sluice_partitions_wanted` |" in (ROOT / "docs" / "reference" / "metrics.md").read_text()


def test_the_command_of_a_pod_starts_a_worker_that_answers_the_probe(tmp_path: Path) -> None:
    objects = objects_of("cpu")
    own = workers(objects)["cpu"]
    options = worker_options(own)
    key, config = tmp_path / "key", tmp_path / "worker.yaml"
    key.write_text("open-sesame")
    document = yaml.safe_load(file_of(objects, own["template"], options.config))
    here = {**document, "listen": "127.0.0.1:0", "key_file": str(key), "cache": str(tmp_path / "cache")}
    config.write_text(yaml.safe_dump(here))
    variables = {"$(POD_NAME)": "worker-0", "$(NODE_NAME)": "node-1", "$(POD_IP)": "127.0.0.1"}
    arguments = ["--config", str(config), "--cores", str(available_cores()[0])]
    for each in container(own["template"])["args"]:
        name, _, value = each.partition("=")
        if name not in ("--config", "--cores"):
            arguments.append(f"{name}={variables.get(value, value)}")
    with worker_server(tmp_path, arguments) as running:
        assert running.about["name"] == "worker-0"
        assert running.about["node"] == "node-1"
        assert "grpc" in container(own["template"])["readinessProbe"]
        with grpc.insecure_channel(running.url) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
