import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from sluice.batcher.interface.config import Limits
from sluice.batcher.policies.deadline import DeadlineSettings, Objective
from sluice.batcher.policies.registry import RegisteredPolicy, batch_policies
from sluice.batcher.policies.timeout import TimeoutConfig, TimeoutSettings
from sluice.batcher.settings.scheduling import PriceSettings
from sluice.gateway.config.json_rules import JsonNan
from sluice.gateway.config.server_config import ServerConfig, ServerLimits, check_arenas, read_config
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_MS
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition, Partition, ShareMode

DOCUMENT = (Path(__file__).parents[4] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")


GPU = "GPU-5d1f7b7a-9c1d-4b52-8b2a-0123456789ab"
MIG = GPU.replace("GPU", "MIG")


def write(directory: Path, text: str) -> Path:
    path = directory / "sluice.yaml"
    path.write_text(text)
    return path


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, ""))
    assert config == ServerConfig()
    assert (config.default_slo_ms, config.max_body_bytes, config.drain_timeout_s) == (10_000, 67_108_864, 30)
    assert config.limits.config() == Limits()
    assert config.policy.config() == DeadlineSettings()


def test_every_setting_can_be_written(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            """
            http_port: 0
            partitions:
              - {kind: cpu, name: left, cores: [0]}
              - {kind: cpu, name: right, cores: [1, 2]}
            policy: {name: timeout, preferred: [4, 8], max_delay_ms: 1.5}
            models:
              mlp: {max_batch_size: 16, policy: {name: none}}
            limits: {queue_requests: 10, memory_mb: 1, hand_off_us: 80}
            """,
        )
    )
    assert config.partitions == (CpuPartition("left", (0,)), CpuPartition("right", (1, 2)))
    assert config.policy.config() == TimeoutConfig((4, 8), 3 * NS_PER_MS // 2)
    assert config.models["mlp"].max_batch_size == 16
    assert config.limits.config() == Limits(queue_requests=10, memory_bytes=1 << 20, hand_off_ns=80_000)


def test_partitions_are_of_all_kinds(tmp_path: Path) -> None:
    config = read_config(
        write(
            tmp_path,
            f"""
            partitions:
              - {{name: cores, cores: [0], memory_mb: 512, hard_memory_mb: 1024}}
              - {{kind: mig, name: slice, uuid: {MIG}, profile: 2g.20gb, memory_mb: 19000, price: 1.2, cores: [1]}}
              - {{kind: mps, name: half, uuid: {GPU}, share_percent: 50, memory_mb: 40000, mode: elastic}}
              - {{kind: mps, name: rest, uuid: {GPU}, share_percent: 50, memory_mb: 30000, mode: uncapped}}
            strict: true
            """,
        )
    )
    assert config.partitions == (
        CpuPartition("cores", (0,), memory_mb=512, hard_memory_mb=1024),
        MigPartition("slice", MIG, "2g.20gb", price=1.2, memory_mb=19_000, cores=(1,)),
        MpsPartition("half", GPU, 50, 40_000, ShareMode.ELASTIC),
        MpsPartition("rest", GPU, 50, 30_000, ShareMode.UNCAPPED),
    )
    assert config.strict
    assert [each.profile_kind for each in config.partitions] == ["cpu1", "mig-2g.20gb+c1", "mps-50", "mps-100"]


def test_the_objective_of_the_policy_can_be_written(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, "policy: {objective: cost}"))
    assert config.policy.config() == DeadlineSettings(objective=Objective.COST)


def test_nan_may_be_null_with_and_without_quotes(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, 'json_nan: "null"')).json_rules.nan == JsonNan.NULL
    assert read_config(write(tmp_path, "json_nan: null")).json_rules.nan == JsonNan.NULL
    assert read_config(write(tmp_path, "")).json_nan == JsonNan.LITERAL


def test_the_documented_example_is_a_configuration_with_every_key(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    config = read_config(write(tmp_path, example))
    assert config.partitions == (CpuPartition("small", (0,)), CpuPartition("large", (1, 2, 3)))
    assert config.models["mlp"].policy == TimeoutSettings((8, 16), 2)
    assert yaml.safe_load(example).keys() == set(ServerConfig.__struct_fields__)


@pytest.mark.parametrize("settings", [ServerConfig(), ServerLimits(), DeadlineSettings(), PriceSettings()])
def test_every_key_is_documented_and_so_are_the_defaults(settings: msgspec.Struct) -> None:
    # Of keys in several tables, such as `name`, those of the policies come first.
    defaults = dict(reversed(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", DOCUMENT, re.MULTILINE)))
    for key, value in json.loads(msgspec.json.encode(settings)).items():
        assert f"\n| `{key}` |" in DOCUMENT
        if not isinstance(value, dict) and key != "partitions":
            assert yaml.safe_load(defaults[key]) == value


@pytest.mark.parametrize("policy", batch_policies().values(), ids=lambda policy: policy.name)
def test_every_policy_is_documented_and_so_are_its_settings_and_their_defaults(policy: RegisteredPolicy) -> None:
    (section,) = re.findall(r"^## `policy`\n(.*?)^## ", DOCUMENT, re.MULTILINE | re.DOTALL)
    defaults = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", section, re.MULTILINE))
    document = json.loads(msgspec.json.encode(policy.settings()))
    assert f"`{document.pop('name')}`" in section
    assert {key: yaml.safe_load(defaults[key]) for key in document} == document


@pytest.mark.parametrize(
    ("partition", "hour"),
    [
        (CpuPartition("cpu0", (0, 1, 2)), 0.06),
        (CpuPartition("cpu0", (0, 1, 2), price=0.5), 0.5),
        (CpuPartition("cpu0", (0,), price=0), 0),
        (MigPartition("mig0", "MIG-0", "2g.20gb"), 2),
        (MigPartition("mig0", "MIG-0", "4g.24gb"), 7),  # all four slices of an A30
        (MigPartition("mig0", "MIG-0", "2g.12gb+me"), 3.5),
        (MigPartition("mig0", "MIG-0", "1g.99gb"), 1),
        (MpsPartition("mps0", "MIG-0", 50, profile="3g.40gb"), 1.5),
        (MpsPartition("mps0", "GPU-0", 30, 1024), 2.1),
        (MpsPartition("mps0", "GPU-0", 30, price=1.5), 1.5),
        (MigPartition("mig0", "MIG-0", "2g.20gb", price=3), 3),
    ],
)
def test_a_partition_costs_its_share_unless_it_has_a_price(partition: Partition, hour: float) -> None:
    assert PriceSettings(core_hour=0.02, gpu_hour=7).per_second(partition) * 3600 == pytest.approx(hour)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "port: 1",
            "Object contains unknown field `port`; expected limits, repository, control, load_models, source_cache, "
            "poll_s, recycle, host, http_port, grpc_port, grpc_server, metrics_port, metrics_interval_ms, "
            "metrics_config, front_ends, partitions, strict, strict_readiness, resize, batch_timeout_s, quarantine, "
            "spare_worker, model_loading, triton, max_body_bytes, front_door, allow_client_shm, client_shm_prefix, "
            "allow_upload, cache_bytes, statuses, tls, restricted, open_groups, allowed_hosts, cors, trace, "
            "trace_requests, request_log, client_key, default_model, json_nan, drain_delay_s, drain_timeout_s, "
            "policy, max_batch_size, models, default_slo_ms, network_ms, late, percentile, instances, residency, "
            "prices",
        ),
        (
            "restricted: [{groups: [infer], header: key, value: v}]",
            "restricted[0].groups[0]: Invalid enum value 'infer'",
        ),
        (
            "restricted: [{groups: [trace], header: a, value: v}, {groups: [trace], header: b, value: v}]",
            "group trace has two keys, expected one",
        ),
        ("restricted: [{groups: [trace], header: A B, value: v}]", "restricted[0]: expected at least one group"),
        ("open_groups: [inference]", "open_groups: expected some of model-repository, shared-memory, trace, logging, "),
        (
            "{open_groups: [trace], restricted: [{groups: [trace], header: a, value: v}]}",
            "open_groups: expected groups without a key in restricted, got 'trace'",
        ),
        ("allowed_hosts: ['a.example:80']", "allowed_hosts: expected names or addresses without a port, such as "),
        ("allowed_hosts: ['https://a.example']", "allowed_hosts: expected names or addresses without a port, such as "),
        ("cors: {origins: [app.example]}", "cors: origins: expected origins such as https://app.example:8443, or '*'"),
        ("cors: {origins: ['https://app.example/']}", "cors: origins: expected origins such as https://app.example"),
        ("cors: {origin: []}", "cors: Object contains unknown field `origin`; expected origins"),
        ("client_shm_prefix: ''", "client_shm_prefix: expected the beginning of names such as 'tensors_', got ''"),
        ("client_shm_prefix: a/b", "client_shm_prefix: expected the beginning of names such as 'tensors_', got 'a/b'"),
        (
            "{allow_upload: true, host: 0.0.0.0, open_groups: [model-repository]}",
            "allow_upload: expected a key in restricted for the group model-repository, since host is '0.0.0.0' and",
        ),
        ("trace: {level: TIMESTAMPS}", "trace: expected a file for level TIMESTAMPS"),
        ("cache_bytes: -1", "cache_bytes: expected at least 0, got -1"),
        ("trace: {rate: 0}", "trace: expected a rate from 1 to 2147483647"),
        ("trace: {mode: opentelemetry, rate: -1}", "trace: expected a rate from 0 to 2147483647"),
        ("trace: {mode: opentelemetry, file: a}", "trace: expected no file in mode opentelemetry, got 'a'"),
        (
            "trace: {opentelemetry: {protocol: grpc}}",
            "trace: expected mode: opentelemetry for the settings of a collector, got mode triton",
        ),
        (
            "trace: {mode: opentelemetry, opentelemetry: {endpoint: 'collector:4317'}}",
            "trace.opentelemetry: endpoint: expected a URL such as http://localhost:4318, got 'collector:4317'",
        ),
        ("trace: {opentelemetry: {queue_spans: 0}}", "trace.opentelemetry: queue_spans: expected 1 to 1000000, got 0"),
        (
            "request_log: {slower_than_ms: -1}",
            "request_log: slower_than_ms: expected a finite number of at least 0, got -1",
        ),
        ("request_log: {lines_per_s: 0}", "request_log: lines_per_s: expected 1 to 1000, got 0"),
        (
            "models: {mlp: {policy: {delay: 1}}}",
            "models.mlp.policy: Object contains unknown field `delay`; expected name, objective",
        ),
        (
            "partitions: [{name: a, cores: [0], core: 0}]",
            "partitions[0]: Object contains unknown field `core`; expected name, cores, slowdown, price, memory_mb, "
            "hard_memory_mb",
        ),
        ("policy: {name: timeout, preferred: [0]}", "policy: preferred: expected sizes of at least 1, got 0"),
        (
            "policy: {name: timeout, max_delay_ms: -1}",
            "policy: max_delay_ms: expected a finite number of at least 0, got -1",
        ),
        (
            "policy: {max_delay_ms: 3}",
            "policy: max_delay_ms belongs to policy aimd or quantile or timeout, not to deadline",
        ),
        (
            "policy: {name: timeout, objective: cost}",
            "policy: objective belongs to policy deadline, not to timeout",
        ),
        ("policy: fast", "policy: name: expected one of aimd, deadline, none, quantile, static, timeout, got 'fast'"),
        ("policy: {objective: fast}", "policy.objective: Invalid enum value 'fast'; expected latency or cost"),
        (
            "models: {mlp: {policy: {name: timeout, max_delay_ms: long}}}",
            "models.mlp.policy.max_delay_ms: Expected `float`, got `str`",
        ),
        ("policy: {name: greedy}", f"policy: name: expected one of {', '.join(batch_policies())}, got 'greedy'"),
        ("control: manual", "control: Invalid enum value 'manual'; expected none or explicit or poll"),
        ("limits: {queue_requests: many}", "limits.queue_requests: Expected `int`, got `str`"),
        ("limits: {queue_requests: 0}", "limits: queue_requests: expected at least 1, got 0"),
        ("limits: {memory_mb: -1}", "limits: memory_mb: expected a finite number above 0, got -1"),
        ("limits: {straggler_factor: 1}", "limits: straggler_factor: expected a finite number above 1, got 1"),
        ("limits: {hand_off_us: .inf}", "limits: hand_off_us: expected a finite number of at least 0, got inf"),
        ("partitions: [{kind: cpu, name: a}]", "partitions[0]: Object missing required field `cores`"),
        (
            "partitions: [{name: a, cores: [0], slowdown: 0.5}]",
            "partitions[0]: partition a: expected a finite slowdown of at least 1, got 0.5",
        ),
        (
            "partitions: [{name: a, cores: [0], slowdown: .inf}]",
            "partitions[0]: partition a: expected a finite slowdown of at least 1, got inf",
        ),
        (
            "partitions: [{name: a, cores: [0], price: .nan}]",
            "partitions[0]: partition a: expected a finite price of at least 0, got nan",
        ),
        (
            "partitions: [{name: a, cores: [0], memory_mb: 0}]",
            "partitions[0]: partition a: expected a finite memory_mb above 0, got 0",
        ),
        (
            "partitions: [{name: a, cores: [0], memory_mb: 900, hard_memory_mb: 800}]",
            "partitions[0]: partition a: expected a memory_mb of at most hard_memory_mb, got 900 and 800",
        ),
        (
            "partitions: [{name: a, cores: [0], hard_memory_mb: 40}]",
            "partitions[0]: partition a: expected a hard_memory_mb of at least 96, which a worker needs for itself, "
            "got 40",
        ),
        ("front_ends: 65", "front_ends: expected 0 to 64, or auto, got 65"),
        ("front_ends: -1", "front_ends: expected 0 to 64, or auto, got -1"),
        ("front_ends: many", "front_ends: Invalid enum value 'many'"),
        ("partitions: []", "partitions: expected at least one, or a triton server"),
        ("partitions: [{kind: gpu, name: a}]", "partitions[0]: kind: expected one of cpu, mig, mps, got 'gpu'"),
        ("partitions: [a]", "partitions[0]: expected an object, got str"),
        (
            f"partitions: [{{kind: mig, name: a, uuid: {GPU}, profile: 1g}}]",
            f"partition a: expected a whole UUID, MIG-…, got '{GPU}'",
        ),
        (
            f"partitions: [{{kind: mig, name: a, uuid: 'MIG-{GPU}/13/0', profile: 1g}}]",
            "partition a: expected the UUID of its instance, MIG-…, as drivers report it since version 470, "
            f"got 'MIG-{GPU}/13/0'; `sluice partitions list` prints it",
        ),
        (
            "partitions: [{kind: mps, name: a, uuid: GPU-5d1f, share_percent: 10}]",
            "partition a: expected a whole UUID, GPU- or MIG-…, got 'GPU-5d1f'",
        ),
        (
            f"partitions: [{{kind: mps, name: a, uuid: {MIG}, share_percent: 10}}]",
            "partition a: expected the profile of the MIG instance that it is a share of",
        ),
        (
            f"partitions: [{{kind: mps, name: a, uuid: {GPU}, share_percent: 10, profile: 1g}}]",
            "partition a: expected no profile beside the UUID of a GPU that it is a share of",
        ),
        (
            f"partitions: [{{kind: mig, name: a, uuid: {MIG}, profile: 9g}}]",
            "partitions[0]: partition a: expected a profile such as 2g or 2g.20gb, got '9g'",
        ),
        (
            f"partitions: [{{kind: mps, name: a, uuid: {GPU}, share_percent: 70, memory_mb: 1000}}, "
            f"{{kind: mps, name: b, uuid: {GPU}, share_percent: 40, memory_mb: 1000}}]",
            f"{GPU}: 110 % are requested (70 % for a, 40 % for b), 100 % are free",
        ),
        ("triton: [{name: t, url: here}]", "triton[0]: expected a name and a url such as 127.0.0.1:8001, got 't'"),
        ("triton: [{name: t, url: 'a:1', models: []}]", "triton[0]: triton t: expected names of models"),
        ("triton: [{name: t, url: 'a:1', timeout_s: 0}]", "triton[0]: triton t: expected a finite timeout_s above 0"),
        ("models: {mlp: {max_batch_size: 0}}", "models.mlp: max_batch_size: expected at least 1, got 0"),
        ("max_batch_size: 0", "max_batch_size: expected at least 1, got 0"),
        ("front_door: {head_bytes: 10}", "front_door: head_bytes: expected a whole number from 1024"),
        ("front_door: {head_lines: 1.5}", "front_door.head_lines: Expected `int`, got `float`"),
        ("front_door: {idle_s: 0}", "front_door: idle_s: expected seconds above 0, at most 1000000, got 0"),
        ("front_door: {idle_s: .nan}", "front_door: idle_s: expected seconds above 0, at most 1000000, got nan"),
        ("front_door: {buffer_mb: .inf}", "front_door: buffer_mb: expected a finite number above 0, got inf"),
        (
            "front_door: {buffer_mb: 64}",
            "front_door: buffer_mb: expected at least 73.22 for max_body_bytes 67108864, got 64",
        ),
        ("front_door: {speed: 1}", "front_door: Object contains unknown field `speed`; expected buffer_mb, max_conn"),
        ("max_body_bytes: 0", "max_body_bytes: expected at least 1, got 0"),
        ("limits: {input_arena_mb: -1}", "limits: input_arena_mb: expected at least 1, got -1"),
        ("limits: {output_arena_mb: 0}", "limits: output_arena_mb: expected at least 1, got 0"),
        ("http_port: 70000", "http_port: expected a port from 0 (any free one) to 65535, got 70000"),
        ("default_slo_ms: .nan", "default_slo_ms: expected a finite number above 0, got nan"),
        ("network_ms: -1", "network_ms: expected at least 0 and less than default_slo_ms (10000), got -1"),
        ("network_ms: 10000", "network_ms: expected at least 0 and less than default_slo_ms (10000), got 10000"),
        ("default_slo_ms: 0", "default_slo_ms: expected a finite number above 0, got 0"),
        (
            "percentile: 101",
            "percentile: expected a number above 50 and at most 100, such as 99.9, got 101",
        ),
        (
            "models: {mlp: {percentile: 50}}",
            "models.mlp: percentile: expected a number above 50 and at most 100, such as 99.9, got 50",
        ),
        ("late: never", "late: Invalid enum value 'never'; expected serve or evict"),
        (
            "json_nan: nan",
            "json_nan: Invalid enum value 'nan'; expected literal or string or null",
        ),
        (
            "client_key: X-Tenant",
            "client_key: expected the name of a header, of lower-case letters, digits, '-', '_' and '.', which does "
            "not end in '-bin', got 'X-Tenant'",
        ),
        ("trace_requests: -1", "trace_requests: expected 0 to 1000000, got -1"),
        ("planner: egs", "planner: Invalid enum value 'egs'"),
        ("planner: {name: egs}", "planner.name: Invalid enum value 'egs'"),
        ("planner: {seed: -1}", "planner: seed: expected at least 0, got -1"),
        ("planner: {time_limit_ms: 0}", "planner: time_limit_ms: expected above 0, up to 60000, got 0"),
        (
            "planner: {name: orion}\ntriton: [{name: t, url: 'a:1'}]",
            "planner: expected exact or esg, since triton server 't' has no share of a machine, got orion, which "
            "compares partitions by share",
        ),
        ("prices: {core_hour: -3}", "prices: core_hour: expected a finite price of at least 0, got -3"),
        ("prices: {gpu_hour: .inf}", "prices: gpu_hour: expected a finite price of at least 0, got inf"),
        (
            "batch_timeout_s: 0",
            "batch_timeout_s: expected a finite number above 0, got 0",
        ),
        (
            "drain_timeout_s: -1",
            "drain_timeout_s: expected a finite number of at least 0, got -1",
        ),
        ("drain_delay_s: -1", "drain_delay_s: expected a finite number of at least 0, got -1"),
        (
            "drain_delay_s: 30",
            "drain_delay_s: expected less than drain_timeout_s, 30, which it is a part of, got 30",
        ),
        ("host: [", "not YAML: while parsing"),
    ],
)
def test_a_wrong_setting_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}:\d+: {re.escape(message)}"):
        read_config(path)


def test_a_setting_decides_which_partitions_ask_for_cores(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, "")).balance is None
    for text, asks in (("auto", "plan"), ("{pause_s: 60}", "plan"), ("{by: load}", "load")):
        balance = read_config(write(tmp_path, f"resize: {text}")).balance
        assert balance is not None
        assert balance.by == asks


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file or directory$"):
        read_config(tmp_path / "absent.yaml")


def test_arenas_that_the_machine_has_memory_for_are_right() -> None:
    check_arenas(ServerLimits(input_arena_mb=1, output_arena_mb=1))


@pytest.mark.parametrize("name", ["input_arena_mb", "output_arena_mb"])
@pytest.mark.parametrize(
    ("size", "reason"),
    # More than 47 bits of addresses, and more than 63 bits.
    [(1 << 28, "Cannot allocate memory"), (1 << 44, "beyond the address space")],
)
def test_an_arena_that_there_is_no_memory_for_is_named(name: str, size: int, reason: str) -> None:
    said = f"^limits: {name}: too large for the memory of this machine, got {size}: {reason}$"
    with pytest.raises(ConfigError, match=said):
        check_arenas(ServerLimits(**{name: size}))
