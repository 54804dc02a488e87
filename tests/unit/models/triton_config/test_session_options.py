import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from sluice.models.backends import onnxruntime
from sluice.models.errors import BackendFailed, ConfigError
from sluice.models.triton_config.pbtxt import decode_config
from sluice.models.triton_config.session_options import SessionOptions, session_options
from tests.support.models.onnx_models import save_mlp


def parameters(**given: str) -> str:
    return " ".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in given.items()
    )


def read(text: str) -> SessionOptions:
    return session_options(decode_config(text, "m.pbtxt"), "m.pbtxt")


def in_json(level: int = 0, **given: str) -> str:
    values = {name: {"string_value": value} for name, value in given.items()}
    return json.dumps({"name": "m", "parameters": values, "optimization": {"graph": {"level": level}}})


def test_without_parameters_everything_is_as_the_runtime_has_it() -> None:
    assert read("") == SessionOptions(
        intra_op_threads=0, inter_op_threads=0, parallel=False, level=0, mem_arena=True, mem_pattern=True
    )


def test_the_parameters_of_tritons_backend() -> None:
    threads = parameters(intra_op_thread_count="4", inter_op_thread_count="2", execution_mode="1")
    memory = parameters(enable_mem_arena="0", enable_mem_pattern="False", share_session_between_instances="false")
    assert read(f"{threads} {memory} optimization {{ graph {{ level: -1 }} }}") == SessionOptions(
        intra_op_threads=4, inter_op_threads=2, parallel=True, level=-1, mem_arena=False, mem_pattern=False
    )
    entries = 'parameters { key: "session.use_device_allocator_for_initializers" value { string_value: "true" } }'
    runs = 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu:0" } }'
    assert read(entries).entries == {"session.use_device_allocator_for_initializers": "1"}
    assert read(runs).run_entries == {"memory.enable_memory_arena_shrinkage": "cpu:0"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parameters(threads="4"), "parameters 'threads': not supported: backend onnxruntime takes intra_op_thread_co"),
        (
            parameters(intra_op_thread_count="many"),
            "'intra_op_thread_count': expected a number from 0 to 1024, got 'many'",
        ),
        (parameters(inter_op_thread_count="-1"), "'inter_op_thread_count': expected a number from 0 to 1024, got '-1'"),
        (parameters(execution_mode="2"), "parameters 'execution_mode': expected a number from 0 to 1, got '2'"),
        (parameters(enable_mem_arena="yes"), "'enable_mem_arena': expected true, false, 1 or 0, got 'yes'"),
        (parameters(share_session_between_instances="1"), "'share_session_between_instances': expected false, since"),
        (parameters(gpu_mem_limit="1"), "parameters 'gpu_mem_limit': not supported: .*; leave it out"),
        ("optimization { graph { level: 3 } }", r"optimization\.graph\.level: expected 0 \(all .*, got 3"),
        (
            'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "cpu" } }',
            "'memory.enable_memory_arena_shrinkage': expected devices such as cpu:0, got 'cpu'",
        ),
    ],
)
def test_what_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^m.pbtxt: .*{message}"):
        read(text)


def threads() -> set[str]:
    """The threads of this process with the name that new ones inherit: others, with names of their own, come and go."""
    name, found = Path("/proc/thread-self/comm").read_text(), set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if (thread / "comm").read_text() == name:
                found.add(thread.name)
    return found


def threads_of_a_session(path: str, config: str) -> int:
    """The threads of a session on a partition of three cores, that of the caller included."""
    before = threads()
    backend = onnxruntime.load(path, 3, config)
    begun = threads() - before
    assert backend.run({"x": np.zeros((2, 4), np.float32)})["y"].shape == (2, 3)
    return len(begun) + 1


def test_a_session_has_the_threads_that_are_asked_for_up_to_one_a_core(tmp_path: Path) -> None:
    path = str(save_mlp(tmp_path / "m.onnx", [4, 3]))
    assert threads_of_a_session(path, in_json()) == 3
    assert threads_of_a_session(path, in_json(intra_op_thread_count="1")) == 1
    assert threads_of_a_session(path, in_json(intra_op_thread_count="2")) == 2
    assert threads_of_a_session(path, in_json(intra_op_thread_count="64")) == 3


def test_sessions_get_what_the_configuration_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = str(save_mlp(tmp_path / "m.onnx", [4, 3])), []
    create = ort.InferenceSession

    def session(path: str, options: ort.SessionOptions, providers: list[str]) -> Any:
        seen.append(options)
        return create(path, options, providers=providers)

    monkeypatch.setattr(ort, "InferenceSession", session)
    name = "session.use_device_allocator_for_initializers"
    asked = {"execution_mode": "1", "inter_op_thread_count": "2", "enable_mem_arena": "0", "enable_mem_pattern": "0"}
    onnxruntime.load(path, 3, in_json(2, **asked, **{name: "1"}))
    (options,) = seen
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.get_session_config_entry(name) == "1"


def test_the_memory_of_the_arena_is_given_back_after_a_run(tmp_path: Path) -> None:
    path, shrinkage = str(save_mlp(tmp_path / "m.onnx", [4, 3])), {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    backend = onnxruntime.load(path, 1, in_json(0, **shrinkage))
    assert backend.run({"x": np.zeros((1, 4), np.float32)})["y"].shape == (1, 3)
    # The option is that of the runtime, which knows of an arena only where there is one.
    without = onnxruntime.load(path, 1, in_json(0, **shrinkage, enable_mem_arena="0"))
    with pytest.raises(BackendFailed, match="arena shrink list: cpu:0"):
        without.run({"x": np.zeros((1, 4), np.float32)})
