"""The page of the configuration: the keys and defaults of the settings in the code, with the descriptions below."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from scripts.reference.command_line import subparsers
from scripts.reference.tables import code, paragraph, table
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule
from sluice.batcher.policies.registry import DEFAULT, batch_policies
from sluice.batcher.settings.planner import PlannerSettings
from sluice.batcher.settings.residency import ResidencySettings
from sluice.batcher.settings.scaling import ScaleSettings
from sluice.batcher.settings.scheduling import ModelSettings, PriceSettings
from sluice.gateway.cli.main import build_parser
from sluice.gateway.config.access import CorsSettings
from sluice.gateway.config.front_door import FrontDoorSettings
from sluice.gateway.config.metrics_settings import MetricsSettings
from sluice.gateway.config.ray_settings import RaySettings
from sluice.gateway.config.remote_settings import DnsSettings, PartitionSettings, RemoteClass, RemoteTls
from sluice.gateway.config.restricted import ApiGroup, RestrictedSettings
from sluice.gateway.config.server_config import ServerConfig, ServerLimits
from sluice.gateway.config.status_settings import StatusSettings
from sluice.gateway.config.tls import TlsSettings
from sluice.gateway.config.tracing import OtlpSettings, RequestLogSettings, TraceFileSettings
from sluice.gateway.config.triton_settings import TritonSettings
from sluice.models.measuring.model_loading import ModelLoadingSettings
from sluice.mps.partitions.balance import BalanceSettings
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition
from sluice.mps.supervisor.quarantine import QuarantineSettings


class Section(NamedTuple):
    """The settings under one key: its struct and the description of each field, with text around the table.

    `defaults` replaces defaults that are better described than written.
    """

    title: str
    settings: type[msgspec.Struct]
    keys: Mapping[str, str]
    before: str = ""
    after: str = ""
    defaults: Mapping[str, str] = {}


SERVER = Section(
    "",
    ServerConfig,
    {
        "host": "Address to listen on, for HTTP and gRPC.",
        "http_port": "Port for HTTP; `0` takes a free one.",
        "grpc_port": "Port for gRPC; `0` takes a free one.",
        "grpc_server": "`sluice`, the server of its own, or `grpcio`, a slower one on the core of grpcio.",
        "metrics_port": "A port for `/metrics` alone, over plain HTTP, besides the HTTP port. Triton's is 8002.",
        "metrics_interval_ms": "The least time between two readings of processors, memory and GPUs for the metrics "
        "`nv_cpu_*`, `nv_gpu_*` and `nv_energy_consumption`, which a scrape takes.",
        "metrics_config": "Which metrics of latencies there are under Triton's names. See [below](#metrics_config).",
        "front_ends": "How many processes talk to clients: `0` for the gateway's process itself, or `auto`. "
        "See [front ends](../operate/front-ends.md).",
        "partitions": "The partitions of the machine, each with one worker: a number, `auto`, or a list. See "
        "[below](#partitions). A mapping has those of [other machines](#partitions-of-other-machines) as well.",
        "strict": "Serve only while every partition is [proved](../operate/isolation.md) to be isolated. Otherwise the "
        "server stops and reports why.",
        "strict_readiness": "Be ready only while all models and pipelines are ready, as in Triton. Otherwise "
        "the server "
        "is ready while any of them is.",
        "batch_timeout_s": "A worker that does not end a batch within this time, or within 20 times its measured "
        "latency if that is more, [hangs](../operate/faults.md) and is replaced.",
        "quarantine": "When a partition is suspended after repeated faults, and for how long. See "
        "[below](#quarantine).",
        "spare_worker": "Keep a process of about 54 MB ready to become the next worker, so that a lost worker is back "
        "[sooner](../operate/faults.md#the-spare-worker). With `front_ends`, another one is ready to become the next "
        "front end.",
        "model_loading": "How long a loaded model is warmed up and timed. See [below](#model_loading).",
        "resize": "`auto` lends free cores and GPU shares to busy partitions ([resizing](../operate/resizing.md)). "
        "Instead of `auto`, its settings may be given. See [below](#resize).",
        "triton": "Triton servers that run batches as well. See [below](#triton).",
        "policy": "The batch policy, which decides when a batch is closed. See [below](#policy).",
        "max_batch_size": "Largest batch in rows, for models with a batch dimension.",
        "models": "Settings of single models. See [below](#models).",
        "default_slo_ms": "Deadline of a request when neither the request nor its pipeline has one.",
        "network_ms": "Time of each objective that is left for the way between client and server and back. A server's "
        "clock starts once it has the request, so what the network and the client take makes requests late for clients "
        "that are in time for the server.",
        "late": "What happens to an admitted request that turns out late, for pipelines and models that do not say: "
        "`serve` answers it late, `evict` gives it up ([pipelines](../start/pipelines.md#late-requests)).",
        "percentile": "Which share of the admitted requests is to be in time, in percent, for pipelines and models "
        "that do not say; above 50 and at most 100. With 100, batches run [strictly as they are planned]"
        "(../design/places.md#a-place-that-is-kept).",
        "instances": "The rule by which models share partitions: a name, or a mapping with settings of it. See "
        "[below](#instances).",
        "client_key": "Name of the HTTP header or gRPC metadata key, in lower case, whose value tells clients apart, "
        "for pipelines that do not say ([clients](../start/pipelines.md#clients)).",
        "default_model": "The model of [SageMaker](../use/protocol.md#sagemaker) requests that name none. Without it, "
        "they go to the only model of the server.",
        "json_nan": "How JSON carries NaN and infinities of outputs: `literal` as `NaN`, `Infinity` and `-Infinity`, "
        "which JSON does not have, `string` as these words in quotes, `null` as `null`. See "
        "[numbers in JSON](../use/protocol.md#numbers-in-json).",
        "residency": "Which models are loaded when a partition has no room for all. See [below](#residency).",
        "limits": "Bounds of queues and memory. See [below](#limits).",
        "max_body_bytes": "Largest request over HTTP and gRPC, compressed or not.",
        "front_door": "Bounds of connections and of what clients send. See [below](#front_door).",
        "repository": "A directory of [models](../start/models.md), a "
        "[URL](../operate/loading.md#repositories-by-url), or a list of them.",
        "control": "The model control mode: `none`, `explicit` or `poll`. See [loading](../operate/loading.md).",
        "load_models": 'With `control: explicit`, the models to load at the start, `"*"` for all.',
        "source_cache": "The directory of the copies of repositories by URL; by default `sluice/sources` in "
        "`$XDG_CACHE_HOME` or `~/.cache`.",
        "poll_s": "With `control: poll`, the seconds between two checks of the repository.",
        "recycle": "Restart the workers that held an unloaded model, which frees all its memory.",
        "cache_bytes": "Size of the response cache, for models with "
        "[`response_cache`](model-configuration.md). Equal requests that are under way together run once, where the "
        "first one is due no later than the others. `0` turns the cache off.",
        "allow_client_shm": "Let clients on this machine pass tensors in system shared memory.",
        "client_shm_prefix": "The beginning of the names of shared memory that clients may register. Without it, they "
        "may register every name if `host` is the loopback, and none otherwise.",
        "allow_upload": "Let clients upload [code](../operate/access.md#code), such as a Python model, with a request "
        "to load it.",
        "prices": "Cost of an hour of the machine. See [below](#prices).",
        "planner": "The planner of pipelines with an objective: its name, such as `esg`, or settings. "
        "See [below](#planner).",
        "statuses": "HTTP statuses of requests that are refused under load. See [below](#statuses).",
        "tls": "Certificates for HTTPS and secure gRPC. See [below](#tls).",
        "restricted": "Parts of the API that only clients with a key may use. See [below](#restricted).",
        "open_groups": "Groups of the [management](../operate/access.md#groups) that stay open without a key although "
        "`host` is not the loopback.",
        "allowed_hosts": "Names in the header `Host` that are [accepted](../operate/access.md#names) besides those of "
        'the server, `"*"` for all.',
        "cors": "Web pages that may ask for inference. See [below](#cors).",
        "trace": "Traces of requests: a file in Triton's format, or spans for a collector of OpenTelemetry. See "
        "[below](#trace).",
        "trace_requests": "Recent requests that are remembered for [`sluice why`](../use/explain.md), and as many "
        "that were not answered in time.",
        "request_log": "Slow and failed requests that get a line in the log. See [below](#request_log).",
        "drain_delay_s": "Seconds for which a server that got the signal to stop goes on serving, but is "
        "[not ready](../operate/machines.md#leaving), so that nobody sends it requests any more when it stops. It must "
        "be less than `drain_timeout_s`.",
        "drain_timeout_s": "Seconds from the signal to stop until open requests are given up. `drain_delay_s` is a "
        "part of them.",
    },
    defaults={
        "partitions": "one for each core that the machine and its cgroup allow",
        "policy": "`{name: deadline}`",
        "quarantine": "see below",
        "model_loading": "see below",
        "residency": "see below",
        "limits": "see below",
        "front_door": "see below",
        "prices": "see below",
        "planner": "see below",
        "statuses": "see below",
        "cors": "see below",
        "trace": "see below",
        "metrics_config": "see below",
        "request_log": "see below",
    },
)

PARTITION_KINDS = {"cpu": CpuPartition, "mig": MigPartition, "mps": MpsPartition}
PARTITION_KEYS = {
    "name": "Name of the partition in metrics and logs.",
    "kind": "`cpu` (the default), `mig` or `mps`.",
    "cores": "Numbers of its cores, as the kernel counts them. On a GPU these are the cores of the worker's own "
    "threads, which other partitions may share; the default is all cores. Their number is part of the kind, such as "
    "`mig-2g.20gb+c4`.",
    "slowdown": "At least `1`, the default: every batch takes that many times as long. It emulates unequal partitions "
    "on equal cores.",
    "price": "Cost of an hour. The default follows from the [prices](#prices).",
    "memory_mb": "Bound of the models that it holds at a time, in MiB; without it there is no bound. With `mps`"
    " it also "
    "bounds the GPU memory of the worker.",
    "hard_memory_mb": "Memory limit that the kernel enforces, in MiB, for the data of the worker and of every process "
    "of a Python model. See [partitions](../operate/partitions.md).",
    "uuid": "The whole UUID of the instance (`MIG-…`) or GPU (`GPU-…`), which `sluice partitions list` prints. Shares "
    "can be of either; `auto` stands for the only GPU or instance that the server was given.",
    "profile": "Profile of the instance, such as `2g.20gb`, by which profiles of models are looked up. With `mps` only "
    "for a share of an instance; without it, the share counts and costs as one of a whole GPU.",
    "share_percent": "Its share of the multiprocessors, from 1 to 100.",
    "mode": "`hard` (the default), `elastic`, `uncapped` or `static`. See [shares](../gpu/shares.md).",
    "pipes": "Pipe directory of an MPS daemon that another program runs, such as NVIDIA's device plugin; `auto` stands "
    "for that of `CUDA_MPS_PIPE_DIRECTORY`. Without it the server has [a daemon](../gpu/mps-daemon.md) of its own.",
}
"""The keys of all kinds of partitions; `kind` is their tag."""

REMOTE_SECTIONS = (
    Section(
        "partitions",
        PartitionSettings,
        {
            "local": "The partitions of this machine, in one of the forms above.",
            "remote": "A list of classes of remote partitions. See below.",
            "ray": "Short for one class named `ray`, whose workers Ray places.",
            "key_file": "A file with the key that the gateway shares with its workers.",
            "tls": "Encrypts the connections to workers. See below.",
        },
        defaults={"local": "none", "ray": "none", "key_file": "none", "tls": "none"},
    ),
    Section(
        "partitions.remote",
        RemoteClass,
        {
            "name": "The name of the class; its partitions are `NAME-0`, `NAME-1` and so on.",
            "kind": "The kind of all its workers, such as `cpu1`, `cpu2/x3`, `mig-1g.10gb` or `mps-25`; it is the key "
            "of their latencies. A worker of another kind is refused. With `ray`, it follows from the resources.",
            "urls": "The addresses of the workers, `HOST:PORT`.",
            "dns": "A name in DNS whose addresses are those of the workers. See below.",
            "ray": "Ray places the workers. Exactly one of `urls`, `dns` and `ray` is given.",
            "price": "The cost of an hour of each partition.",
            "memory_mb": "Limits the models that each partition holds at a time, in MiB.",
            "scale": "The server decides how many of the partitions are up. See below.",
        },
        defaults={
            "kind": "that of the resources, with `ray`",
            "urls": "none",
            "dns": "none",
            "ray": "none",
            "price": "by its kind",
            "memory_mb": "no limit",
            "scale": "all partitions are to be up",
        },
    ),
    Section(
        "partitions.remote.scale",
        ScaleSettings,
        {
            "min": "The fewest partitions that are up; without `to_zero` at least one.",
            "max": "The most partitions that are up.",
            "to_zero": "None is up while the class has no traffic.",
            "target": "The part of their time that partitions are to be busy.",
            "start_s": "The time that a partition takes to start, until the server has seen it.",
        },
        defaults={"max": "all"},
    ),
    Section(
        "partitions.remote.dns",
        DnsSettings,
        {
            "name": "The name that is looked up every few seconds, such as a headless Service of Kubernetes.",
            "port": "The port of the workers.",
            "max": "The number of partitions; further addresses are logged and wait for a free one.",
        },
    ),
    Section(
        "partitions.remote.ray",
        RaySettings,
        {
            "address": "The host and port of the cluster's head, or `auto`: of `RAY_ADDRESS`, else of this machine.",
            "namespace": "Gateways with the same one share the workers of a class.",
            "nodes": "The nodes that may be used, by name, address or id.",
            "count": "The number of workers.",
            "min": "The least number of workers that the autoscaler may want.",
            "max": "The number of partitions, up to which the autoscaler may want workers.",
            "resources": "What each worker takes of its node: `CPU` in whole cores, `GPU` as a part of one, or a MIG "
            "instance such as `mig-2g.20gb`, and any other resource of nodes. The kind follows from it.",
            "strategy": "`spread`: on as many nodes as possible; `pack`: on as few.",
            "near": "A name; classes with the same one have their workers of the same number on the same node.",
            "runtime_env": "The runtime environment of the actors, in Ray's words.",
            "cache": "The directory of models on the nodes.",
            "cache_mb": "The size of that cache in MiB.",
            "worker_options": "Further options of `sluice worker`, such as those of TLS.",
            "keep_s": "The time after which workers end that no gateway uses.",
            "without_head_s": "The time for which workers go on when Ray's head is gone.",
        },
        "Also `partitions.ray`. See [Ray](../operate/ray.md).",
        defaults={
            "nodes": "all",
            "count": "as many as the cluster has room for",
            "min": "none",
            "max": "none",
            "resources": "a GPU where the cluster has any, else one core",
            "near": "none",
            "runtime_env": "none",
            "cache": "that of the worker",
            "cache_mb": "that of the worker",
            "worker_options": "none",
        },
    ),
    Section(
        "partitions.tls",
        RemoteTls,
        {
            "ca": "A file with the authorities of the workers' certificates, in PEM.",
            "certificate": "A file with the certificate of the gateway, in PEM.",
            "private_key": "A file with its key, in PEM.",
            "server_name": "The name in the certificates of workers, where it is not the host of their addresses.",
        },
        defaults={"server_name": "the host of the address"},
    ),
)

SECTIONS = (
    Section(
        "models",
        ModelSettings,
        {
            "max_batch_size": "Largest batch of this model in rows.",
            "policy": "The batch policy of this model, with the same keys as [above](#policy).",
            "late": "What happens to an admitted request to this model that turns out late: `serve` or `evict`.",
            "percentile": "Which share of the admitted requests to this model is to be in time, in percent.",
            "instances": "The instance policy of this model, as [above](#instances).",
        },
        "By model name; the settings apply to all versions of the model. An unknown model is refused.",
        "`late` and `percentile` apply to requests to the model itself; a pipeline that uses it has its own.",
        defaults=dict.fromkeys(("max_batch_size", "policy", "late", "percentile", "instances"), "that of the server"),
    ),
    Section(
        "instances",
        InstanceConfig,
        {
            "name": f"One of {', '.join(f'`{rule}`' for rule in InstanceRule)}.",
            "lookahead": "Requests that are sent ahead of their time have their turn in the order of the rule, and "
            "those behind them wait; otherwise only requests compete whose time has come.",
            "seed": "Of `mlfq`: the seed of its draws.",
            "steal_at": "Of `exclusive`: a model takes a partition of one whose load a partition is less by this "
            "factor.",
            "off_affinity": "Of `cfs_affinity`: time counts by this factor where the model has to be loaded.",
        },
        "A name alone is a mapping with that `name`. [Instance policies](../operate/instances.md) explains the rules.",
    ),
    Section(
        "residency",
        ResidencySettings,
        {
            "loading": "`plan`, `demand`, or `auto`: on demand if there is no room for all models of the start.",
            "eviction": "The model that makes room for another: `lru`, the one whose last batch is the longest ago, or "
            "`none`.",
            "pinned": "Names of models that stay loaded, or of pipelines whose models stay.",
            "priorities": "By such names; models of a lower priority are evicted first. `0` unless given.",
            "min_resident_ms": "How long a loaded model stays at least, even without batches.",
            "loads": "Concurrent loads on one partition.",
            "default_load_ms": "Expected time of a load before one has been measured.",
            "prewarm": "When models of later stages are loaded: `jit`, `speculative` or `off`.",
            "path": "How the most likely path through a pipeline is found: `product` or `greedy`.",
            "min_probability": "Stages with a lower probability are not prewarmed.",
            "on_miss": "What is prewarmed for a request that leaves the most likely path: the models of the most "
            "likely path from there (`replan`), or nothing more (`stop`).",
            "packing": "The [policy](../operate/residency.md#packing) that says which models may share a partition: "
            "`exclusive`, `best_fit`, `first_fit_decreasing`, `cbp`, `pp` or `peak_safe`, or a mapping with such a "
            "`name` and its parameters.",
        },
        "The keys are explained in [residency](../operate/residency.md).",
    ),
    Section(
        "limits",
        ServerLimits,
        {
            "queue_requests": "Open requests of each pipeline; more are refused.",
            "memory_mb": "Tensors of all open requests, in MiB; requests beyond it are refused. Half of it is kept for "
            "the pipelines and models in equal parts, so that none of them can take everything.",
            "hand_off_us": "Least time of a batch on its way to a worker and back, in microseconds.",
            "straggler_factor": "A batch runs elsewhere as well once it takes this many times its median, a number "
            "above 1; without one by the [default rule](../operate/faults.md#batches-that-take-too-long).",
            "input_arena_mb": "Shared memory for inputs of batches, in MiB. Half of it receives large requests.",
            "output_arena_mb": "Shared memory for the outputs of each worker, in MiB.",
        },
    ),
    Section(
        "prices",
        PriceSettings,
        {
            "core_hour": "An hour of a core; a partition costs as much as its `cores`, and as its part of a GPU.",
            "gpu_hour": "An hour of a whole GPU. A share costs its part, an instance its compute slices: `2g.12gb` is "
            "half an A30, a plain `2g` two of seven slices.",
        },
        "In any currency; the defaults are dollars for rented machines. A batch costs the price of its "
        "partition for the "
        "time that the worker computes, and a request pays its share by rows. Metrics, responses and `max_cost` "
        "([explanations and costs](../use/explain.md)) use the same currency.",
        "A partition with a `price` of its own costs that price per hour.",
    ),
    Section(
        "planner",
        PlannerSettings,
        {
            "name": "`exact`, or for comparison one of the literature: `esg`, `infless`, `fast_gshare`, `orion`, "
            "`aquatope`. See [planners that serve](../operate/planning.md#planners-that-serve).",
            "replan": "`dispatch` chooses again at every dispatch with `exact` and `esg`, and plans again with the "
            "others when rates, latencies or partitions change. `once` keeps the first plan that is made at a rate, "
            "until partitions or models change.",
            "seed": "The seed of `aquatope`, which draws at random.",
            "time_limit_ms": "How long a plan may take for each pipeline, in milliseconds, up to 60 000. It bounds the "
            "searches of `orion` and `esg` as well. Where a plan takes longer, the one before stays, and it is "
            "ordered again after 1, 2, 4 s and so on, at most six times.",
        },
    ),
    Section(
        "quarantine",
        QuarantineSettings,
        {
            "faults": "Losses within `within_s` after which a partition is suspended; `0` for never.",
            "within_s": "The seconds for `faults`, and the time that a worker must run for earlier faults to be"
            " forgotten.",
            "first_s": "Seconds of the first suspension; every further one is twice as long.",
            "last_s": "The longest suspension, in seconds.",
        },
        "A partition whose worker is lost repeatedly is suspended for a while. See [faults](../operate/faults.md).",
    ),
    Section(
        "model_loading",
        ModelLoadingSettings,
        {
            "run_ms": "Milliseconds of runs at the model's batch sizes. Larger sizes than fit in are not run, and are "
            "assumed to take as long per row as the largest that was.",
            "concurrent": "Models that a worker creates at a time.",
        },
        "A loaded model is warmed up and timed from one row up. Batches of other models run between two of its runs.",
    ),
    Section(
        "resize",
        BalanceSettings,
        {
            "by": "`plan` asks the plan which partition needs more, `load` decides by the measured load.",
            "busy": "A partition that is busy for this part of its time gets more.",
            "idle": "A partition that is busy for at most this part gives back what it was lent.",
            "every_s": "Seconds between two checks.",
            "pause_s": "Seconds between two changes.",
        },
        "`manual` leaves partitions as they are, `auto` resizes them with the defaults below. A mapping with "
        "these keys "
        "does so with other settings. See [resizing](../operate/resizing.md).",
    ),
    Section(
        "front_door",
        FrontDoorSettings,
        {
            "buffer_mb": "Requests that have been read and not answered, and answers that have not been taken, in MiB. "
            "The default is `limits.memory_mb`, or what the largest request needs if that is more.",
            "max_connections": "Connections over HTTP. It is lowered to what the limit of open files allows.",
            "max_connections_per_address": "Connections from one address over HTTP, and as many over gRPC; `0` sets no "
            "limit.",
            "head_bytes": "Size of the head of a request: its target and its headers.",
            "head_lines": "Headers of a request.",
            "json_bytes": "Size of the JSON of an inference request, without binary tensors.",
            "answer_json_bytes": "Size of the tensors of an answer as JSON over HTTP.",
            "id_bytes": "Size of the id of an inference request.",
            "head_timeout_s": "Seconds for the head of a request, or a frame without data over gRPC, to arrive.",
            "first_request_s": "Seconds for the first request on a connection to begin.",
            "idle_s": "Seconds between two requests on a connection over HTTP.",
            "progress_s": "Seconds after which the progress of a body, or of a client that reads an answer, is "
            "checked.",
            "min_bytes_per_s": "The least progress, in bytes a second; with `0`, any progress is enough.",
            "grpc_connections": "Connections over gRPC. It is lowered to what the limit of open files allows.",
            "grpc_head_bytes": "Size of the headers of a gRPC call.",
            "grpc_streams": "Open calls on one gRPC connection; clients keep others back.",
            "grpc_idle_s": "Seconds after which a gRPC connection without calls is closed.",
            "grpc_age_s": "Seconds after which a gRPC connection takes no more calls. Its open calls end normally.",
            "grpc_message_s": "Seconds for the message of a gRPC call to arrive; streams may wait longer.",
            "grpc_ping_s": "Seconds between two pings of a gRPC client; a connection with more pings is closed.",
        },
        before="[Front door](../operate/front-door.md) describes what each of these bounds protects.",
    ),
    Section(
        "statuses",
        StatusSettings,
        {
            "overload": "`503` or `429` (`RESOURCE_EXHAUSTED`): no room, or no time to answer by the deadline.",
            "expired": "`503` or `504` (`DEADLINE_EXCEEDED`): the request timed out in a queue.",
        },
        after="The defaults are Triton's, with `UNAVAILABLE` over gRPC. The message and `Retry-After` are the same in "
        "both cases.",
    ),
    Section(
        "tls",
        TlsSettings,
        {
            "certificate": "The server's certificate, followed by the certificates that signed it, unless "
            "clients have them.",
            "key": "The key of `certificate`.",
            "client_ca": "The certificate that signs those of clients; without it, clients need none.",
        },
        "Both ports then speak TLS only, version 1.2 or newer. The files are in PEM. Files that have changed are "
        "read again at the next handshake ([access](../operate/access.md#certificates)).",
    ),
    Section(
        "restricted",
        RestrictedSettings,
        {
            "groups": f"Some of {', '.join(f'`{group}`' for group in ApiGroup)}.",
            "header": "Name of the header, in lower case.",
            "value": "The key, in printable ASCII.",
        },
        "A list. A request to one of the `groups` must have the `header` with that `value`: over HTTP as a "
        "header, over "
        "gRPC as metadata whose name begins with `triton-grpc-protocol-`. Otherwise it is refused with 403 or "
        "`UNAVAILABLE`. A group may be in one element only.",
        "Without a key of its own, `explain` has that of `trace`. The OpenAPI document belongs to no group. `sluice "
        "model`, `sluice why` and `sluice partitions resize` send a key with `--header 'NAME: VALUE'`. See "
        "[access](../operate/access.md#groups).",
    ),
    Section(
        "cors",
        CorsSettings,
        {
            "origins": "Origins such as `https://app.example:8443`, whose pages may read and ask for inference; "
            '`"*"` for all.',
        },
        "Pages of other origins may not ask for inference, and only pages of the server itself may change it. See "
        "[access](../operate/access.md#web-pages).",
    ),
    Section(
        "trace",
        TraceFileSettings,
        {
            "file": "A JSON array that is complete after every request; an existing file is overwritten.",
            "level": "`OFF` or `TIMESTAMPS`.",
            "rate": "One of this many requests is traced. In mode `opentelemetry` this is for requests whose clients "
            "send no trace context; `0` is none of them.",
            "count": "Largest number of traced requests; `-1` for no bound.",
            "log_frequency": "Traces in a file, after which another file with a number begins; `0` for one file.",
            "max_bytes": "Size of a file; a full one gets a number, and another one begins. At least 65536.",
            "max_files": "Files that are kept, the latest; numbered ones of earlier servers count. At most 10000.",
            "mode": "`triton` for a file, or `opentelemetry` for spans, which needs the extra `otel`.",
            "opentelemetry": "The collector of mode `opentelemetry`. See [below](#traceopentelemetry).",
        },
        "The initial trace settings of the protocol. Clients can change them, but only this setting names a file or a "
        "collector. See [tracing](../operate/tracing.md).",
        defaults={
            "level": "`OFF`; in mode `opentelemetry` `TIMESTAMPS`",
            "opentelemetry": "see below",
        },
    ),
    Section(
        "trace.opentelemetry",
        OtlpSettings,
        {
            "endpoint": "URL of the collector, such as `http://localhost:4318`.",
            "protocol": "`http/protobuf` or `grpc`.",
            "headers": "Headers of each export, such as a key for the collector.",
            "resource": "Attributes of the server, such as `service.name`.",
            "queue_spans": "Spans that may wait for the collector; further ones are dropped and counted.",
        },
        "What is left out is as the variables `OTEL_*` of the environment say "
        "([tracing](../operate/tracing.md#the-collector)).",
        defaults={
            "endpoint": "`http://localhost:4318`, over gRPC `http://localhost:4317`",
            "protocol": "`http/protobuf`",
        },
    ),
    Section(
        "request_log",
        RequestLogSettings,
        {
            "slower_than_ms": "Requests that take longer are logged.",
            "failed": "Requests without an answer are logged, unless their client has left.",
            "lines_per_s": "The most lines in a second; the next line says how many were left out.",
        },
        "Each line has the fields of `sluice why` ([tracing](../operate/tracing.md#the-request-log)).",
    ),
    Section(
        "metrics_config",
        MetricsSettings,
        {
            "counter_latencies": "The counters `nv_inference_*_duration_us`.",
            "summary_latencies": "The summaries `nv_inference_*_summary_us`: quantiles of the last minute, by model.",
            "summary_quantiles": "The quantiles, each with the error that is allowed; all are right within 1 %.",
        },
        "As in Triton, `--metrics-config NAME=VALUE` sets one of them. Summaries take some microseconds a request.",
    ),
    Section(
        "triton",
        TritonSettings,
        {
            "name": "Name of the partition that the server is.",
            "url": "Host and port of its gRPC service, or `unix:` and a path.",
            "models": "Models that it runs; without the key, all that are ready when Sluice starts.",
            "price": "Cost of an hour.",
            "timeout_s": "Time for a batch and for any other call except loading, or 20 times the measured latency if "
            "that is more.",
            "command": "A command that starts the server; without it, the server runs already.",
            "cores": "Cores of a server with a `command`; without the key, all cores.",
            "environment": "Environment variables of a server with a `command`, added to those of Sluice.",
            "start_timeout_s": "Seconds for a server with a `command` to become ready.",
            "http_url": "Host and port of the HTTP service of a server on this machine, for batches in shared memory.",
        },
        "A list of Triton servers, each of which is a partition. See [Triton servers](../operate/triton.md).",
        defaults={"price": "that of a GPU", "models": "all", "cores": "all"},
    ),
)


def configuration_page() -> str:
    """The text of docs/reference/configuration.md."""
    parts = [_TITLE, paragraph(_INTRODUCTION), _server_table()]
    parts += ["## Values", paragraph(_WRITTEN), "## Environment", paragraph(_ENVIRONMENT)]
    parts += ["## Checks", paragraph(_CHECKS)]
    parts += ["## `partitions`", paragraph(_PARTITIONS)]
    parts += [_partition_table(), paragraph(_PARTITION_MEMORY)]
    parts += ["## Partitions of other machines", paragraph(_REMOTE)]
    for section in REMOTE_SECTIONS:
        parts += [f"### `{section.title}`", _settings_table(section)]
    parts += ["## `policy`", paragraph(_POLICY), _policy_names(), *_policies(), paragraph(_OBJECTIVES)]
    for section in SECTIONS:
        parts += [f"## `{section.title}`", paragraph(section.before)]
        parts += [_settings_table(section), paragraph(section.after)]
    parts += ["## Example", _EXAMPLE]
    return "\n\n".join(part for part in parts if part) + "\n"


def _server_table() -> str:
    rows = [(code(key), default, _option(key), text) for key, default, text in _described(SERVER)]
    return table(("Key", "Default", "Option", ""), rows)


def _settings_table(section: Section) -> str:
    return table(("Key", "Default", ""), [(code(key), default, text) for key, default, text in _described(section)])


def _described(section: Section) -> Iterator[tuple[str, str, str]]:
    """The keys of a section with their defaults and descriptions, in the order of the descriptions."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(section.settings)}
    if fields.keys() != section.keys.keys():
        differing = ", ".join(sorted(fields.keys() ^ section.keys.keys()))
        raise ValueError(f"{section.title or 'server'}: expected a description for exactly the keys, got {differing}")
    for key, text in section.keys.items():
        yield key, section.defaults.get(key) or _default(fields[key]), text


def _default(field: msgspec.structs.FieldInfo) -> str:
    """The default as it is written in YAML; "" for a key that is required."""
    value: Any = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    if value is msgspec.NODEFAULT:
        return ""
    encoded = json.loads(msgspec.json.encode(value))
    return code(encoded if isinstance(encoded, str) and encoded else json.dumps(encoded))


@cache
def _options() -> Mapping[str, str]:
    """The options of `sluice serve`, by the name of the value that they set."""
    serve = subparsers(build_parser(("serve",)))["serve"]
    return {action.dest: action.option_strings[-1] for action in serve._actions if action.option_strings}


_LISTED = {
    "load_models": "load_model",
    "open_groups": "open_group",
    "allowed_hosts": "allowed_host",
    "cors": "cors_origin",
}
"""Options of `sluice serve` that are given once for each element of a key."""


def _option(key: str) -> str:
    """The option of `sluice serve` that overrides a key."""
    option = code(_options().get({"policy_name": "policy", **_LISTED}.get(key, key), ""))
    return f"{option} and others" if key == "policy" else option


def _partition_table() -> str:
    kinds = {
        key: [name for name, kind in PARTITION_KINDS.items() if key in kind.__struct_fields__] for key in PARTITION_KEYS
    }
    known = {key for kind in PARTITION_KINDS.values() for key in kind.__struct_fields__} | {"kind"}
    if known != PARTITION_KEYS.keys():
        raise ValueError(f"partitions: expected a description for {known ^ PARTITION_KEYS.keys()}")
    rows = [
        (code(key), "all" if len(kinds[key]) in (0, len(PARTITION_KINDS)) else ", ".join(map(code, kinds[key])), text)
        for key, text in PARTITION_KEYS.items()
    ]
    return table(("Key of an element", "Kinds", ""), rows)


def _policy_names() -> str:
    names = [code(name) for name in batch_policies()]
    return table(
        ("Key", "Default", "Option", ""),
        [(code("name"), code(DEFAULT), _option("policy_name"), f"{', '.join(names[:-1])} or {names[-1]}.")],
    )


def _policies() -> Iterator[str]:
    """A line and the keys of every registered policy."""
    for policy in batch_policies().values():
        first = (policy.settings.__doc__ or "").strip().splitlines()[0]
        yield f"**`{policy.name}`** {first}"
        if fields := msgspec.structs.fields(policy.settings):
            rows = [
                (code(field.name), _default(field), option, _description(policy.name, field))
                for field in fields
                for option in ["" if field.name in ServerConfig.__struct_fields__ else _option(field.name)]
            ]
            yield table(("Key", "Default", "Option", ""), rows)


def _description(policy: str, field: msgspec.structs.FieldInfo) -> str:
    """The description of a policy's key, in its own file."""
    for meta in getattr(field.type, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    raise ValueError(f"policy {policy}: {field.name}: no description; expected Annotated[..., Meta(description=...)]")


_TITLE = """# Configuration

<!-- Written by `make reference` from the settings in the code and the descriptions in scripts/reference. -->"""

_INTRODUCTION = """`sluice serve --config FILE` reads settings from a YAML file. Every key has a default, so an
empty file is valid. Environment variables override the file, and options of the command override both. An unknown key
or a wrong value is refused with its line and place in the file, and with what was probably meant."""

_WRITTEN = """Files are YAML 1.2: only `true` and `false` are booleans, so that `off` is a text, as in `level: OFF`. A
setting that is a boolean takes `yes`, `no`, `on` and `off` as well. A number is in the unit at the end of its key
(`_us`, `_ms`, `_s`, `_bytes`; `_mb` and `_mib` are MiB), or has a unit of its own: `default_slo_ms: 2s`,
`max_body_bytes: 1.5GiB`. Units of time are `ns`, `us`, `ms`, `s`, `min` and `h`, those of size `B`, `KiB`, `MiB`, `GiB`
and `TiB`. The same holds for options, `pipeline.yaml`, and the other YAML files."""

_ENVIRONMENT = """Every option of `sluice serve` has an environment variable: `SLUICE_` and the name of the option in
capitals, such as `SLUICE_HTTP_PORT` for `--http-port` and `SLUICE_CONFIG` for `--config`. An option without a value
is `true` or `false`. The values of an option that may be repeated are separated by commas, or by new lines. `sluice
config`, `doctor`, `plan` and `partitions list` read the same variables. Those of other commands have the words of the
command as well (`SLUICE_MODEL_LOAD_CONFIG`), except for `SLUICE_URL`, `SLUICE_HEADER`, `SLUICE_CACERT`, `SLUICE_CERT`
and `SLUICE_KEY`, which say where a server is and how to reach it. Variables of `loadgen` begin with `LOADGEN_`. A
value that begins with `tcp://` or `udp://` is one that Kubernetes sets for a service, and has no effect. A variable
that has nearly the name of one of these is reported."""

_CHECKS = """`sluice config check` takes the options of `sluice serve` and checks what that would do with them, without
starting anything. It tries what a server checks of its machine when it starts: the partitions, the memory for tensors,
the certificate, that repositories exist, and that the packages for [URLs](../operate/loading.md#repositories-by-url)
are installed. It also warns of settings that are valid but cannot work together, such as a queue that is shorter than
a batch; so do `sluice serve`, in its log, and `sluice doctor`. `sluice config show` prints every setting with its
origin: a line of the file, an environment variable, an option, or the default. `sluice config schema` prints the JSON
Schema of this file (`server`), of `pipeline.yaml`, of `family.yaml`, or of a file of GPU
layouts (`partitions`), for editors."""

_PARTITIONS = """\
A number creates that many equal sets of the cores that the process may use, named `cpu0`, `cpu1` and so on. A list
describes sets of cores, MIG instances and shares of GPUs under MPS. No core may be in two sets. `auto` takes what the
server was given, as a container is: a partition for each MIG instance, `mig0` and so on, and one for each whole GPU,
`gpu0` and so on. Without any, it takes the cores. The devices are those that the driver shows; if
`NVIDIA_VISIBLE_DEVICES` or `CUDA_VISIBLE_DEVICES` has UUIDs, only these count. Every partition has a worker of its
own, which holds every model that fits into its memory and runs one batch at a time on the whole partition."""

_PARTITION_MEMORY = """A model takes the memory that its [profile](../operate/profiles.md) reports for its largest
batch, or else the size of its file. If not every partition has memory for every model, each model is placed once,
and the remaining memory goes to further copies. If there is no room for all models, the others are loaded on demand
([residency](../operate/residency.md)). A model that is larger than every partition is not served; the log and its
metadata report this."""

_REMOTE = """A mapping in place of the list has partitions of this machine and of others, whose workers are servers of
their own (`sluice worker`). See [remote partitions](../operate/remote.md)."""

_POLICY = """A policy is written as its name, such as `policy: aimd`, or with its keys. `--policy` replaces the
whole policy of the file; the other options change only their key."""

_OBJECTIVES = """With the objective `latency`, a request never waits while a partition is idle, except for a tenth
of its own time. With `cost`, a batch that is not worthwhile yet starts as late as deadlines safely allow, so that
the same traffic takes less of the partitions' time. A lone request then takes most of its deadline: give it one
(`slo_ms`), or it waits for nearly `default_slo_ms`.

`aimd` and `quantile` look at no deadline: each partition learns how large its batches may be to end within
`target_ms`, and takes what waits up to that size, first come, first served. `target_ms` is the time of a batch alone:
give a request that may have to wait for a batch before it at least twice that. `aimd` follows a slower partition at
once; `quantile` finds the size in a few dozen batches, and noise moves it less. The metric `sluice_batch_learned_rows`
has the sizes.

`static` takes the parameters of TensorFlow Serving as they are. A full queue refuses requests with the status of
[overload](#statuses); inputs of other shapes have a queue of their own. A batch that is padded runs with its last row
repeated, and is predicted to take the time of the size that it runs with. The metric `sluice_batch_padded_rows_total`
counts what was added. Three kinds of batches are not padded: those of Python models, which see their requests; one
request that is larger than all sizes; and those of models whose batches have one row. A size above a model's own
`max_batch_size` is refused at load: where the models of a server take different batches, give each the sizes that it
takes, in `models`. TensorFlow Serving shares its threads among all models; here, each model has `num_batch_threads` of
its own."""

_EXAMPLE = """```yaml
host: 0.0.0.0                 # all interfaces
http_port: 8000
grpc_port: 8001
grpc_server: sluice           # or grpcio
metrics_port: 8002            # Triton's port for metrics
metrics_interval_ms: 1000     # read processors and GPUs at most once a second
metrics_config: {summary_latencies: true}
front_ends: auto
partitions:                   # or a number of equal ones: `partitions: 2`
  - {name: small, cores: [0]}
  - {name: large, cores: [1, 2, 3]}
strict: true                  # refuse partitions whose limits do not hold
strict_readiness: true        # not ready while a model is broken
batch_timeout_s: 5            # replace a worker after 5 s without an answer
quarantine: {faults: 3}       # suspend a partition after 3 lost workers
spare_worker: false           # no process waits to become the next worker
model_loading: {run_ms: 1000} # a loaded model is run for about a second
resize: {pause_s: 60}         # lend free cores to busy partitions, once a minute at most
triton:
  - {name: gpu0, url: "10.0.0.7:8001", models: [bert]}
policy: {name: deadline}
max_batch_size: 32
models:
  mlp:                        # wait up to 2 ms for 8 or 16 rows
    max_batch_size: 16
    policy: {name: timeout, preferred: [8, 16], max_delay_ms: 2}
default_slo_ms: 500
network_ms: 1
late: evict                   # rather no answer than a late one
percentile: 99.9              # of the admitted requests are to be in time
client_key: x-tenant          # the header that tells clients apart
default_model: mlp            # for SageMaker requests that name no model
json_nan: string              # "NaN" in quotes, for strict readers of JSON
instances: locality           # batches run where the core finds it best
residency: {loading: demand, pinned: [mlp], priorities: {bert: 1}}
limits:
  queue_requests: 1000
  memory_mb: 512
  hand_off_us: 150
  input_arena_mb: 256
  output_arena_mb: 128
max_body_bytes: 16777216      # 16 MiB
front_door: {buffer_mb: 512, idle_s: 300}
repository: [models, /srv/models]
control: explicit             # clients load and unload models
load_models: [mlp]            # the others are loaded by clients
source_cache: /var/cache/sluice  # of repositories that are URLs
poll_s: 5                     # only used with `control: poll`
recycle: true
allow_client_shm: true
client_shm_prefix: tensors_   # clients register /dev/shm/tensors_…
allow_upload: true            # clients with the key may load Python models
cache_bytes: 268435456
prices: {core_hour: 0.05, gpu_hour: 3.5}
planner: {name: esg, time_limit_ms: 200}
statuses: {overload: 429, expired: 504}
tls: {certificate: server.pem, key: server.key}
restricted:
  - {groups: [model-repository, logging, trace], header: admin-key, value: s3cret}
open_groups: [partitions]     # everyone may resize
allowed_hosts: [models.example]
cors: {origins: ["https://app.example"]}
trace: {file: traces.json, rate: 100}
trace_requests: 50000
request_log: {slower_than_ms: 500, failed: true}
drain_delay_s: 0
drain_timeout_s: 10
```"""
