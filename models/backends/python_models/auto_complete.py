"""Completes the configuration of a model in Python by its function `auto_complete_config`.

The function is the model's code, so it runs in a process of its own, `python -m` this module, which ends then.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.models.errors import ConfigError
from sluice.models.processes import python_path

TIME_LIMIT_S = 60.0
_FUNCTION = "auto_complete_config"
_MAX_MESSAGE = 2000
_MAX_SOURCE_BYTES = 16 << 20


class ModelConfig:
    """A configuration that a model completes; Triton's class of that name, with Triton's errors."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """The configuration."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the maximum batch size; raises ValueError below the size that the configuration has."""
        known = self._config["max_batch_size"]
        if known > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {known}, but in auto-complete-config function for model "
                f"'{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turn on the dynamic batcher, unless its settings are there; raises ValueError with another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._config:
                raise ValueError(
                    f"configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._config['name']}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input, or complete it; raises ValueError for one that contradicts the configuration."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete it; raises ValueError for one that contradicts the configuration."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the number of responses to a request; raises ValueError if the configuration has another setting."""
        if transaction_policy_dict.keys() - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._config['name']}' "
                "contains property other than 'decoupled'."
            )
        policy = self._config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if policy.setdefault(key, value) != value:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._config['name']}', "
                    f"which is already set to '{policy[key]}'."
                )

    def _add(self, kind: str, tensor: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
        model = self._config["name"]
        name = tensor.get("name")
        if name is None:
            raise ValueError(
                f"{kind} in auto-complete-config function for model '{model}' is missing 'name' property."
            )
        at = f"{kind} '{name}' in auto-complete-config function for model '{model}'"
        if tensor.keys() - set(allowed):
            raise ValueError(f"{at} contains property other than {', '.join(map(repr, allowed))}.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{at} is missing '{key}' property.")
        known = next((each for each in self._config[kind] if each["name"] == name), None)
        if known is None:
            self._config[kind].append(dict(tensor))
            return
        if known["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {known['data_type']} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        if known["dims"] and list(known["dims"]) != list(tensor["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {tensor['dims']} but the model "
                f"configuration specifies dims {known['dims']}"
            )
        if "optional" in tensor and known.get("optional") and not tensor["optional"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {tensor['optional']} but the model "
                f"configuration specifies optional {known['optional']}"
            )
        known.update(tensor)


def completes_config(path: Path) -> bool:
    """Return whether the text of a model has the function; a file that cannot be read, or is too large, has not."""
    try:
        with path.open("rb") as file:
            return _FUNCTION.encode() in file.read(_MAX_SOURCE_BYTES)
    except OSError:
        return False


def auto_complete(path: Path, config: str, time_limit_s: float = TIME_LIMIT_S) -> str:
    """Return a configuration, in JSON, as the model of the file `path` completes it; raises ConfigError."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, "--path", str(path), "--result", str(writing)],
            env=os.environ | {"PYTHONPATH": python_path()},
            stdin=subprocess.PIPE,
            pass_fds=(writing,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(reading)
        raise ConfigError(f"{path}: {_FUNCTION}: its process cannot be started: {error}") from error
    finally:
        os.close(writing)
    with open(reading, "rb") as result:
        try:
            process.communicate(config.encode(), time_limit_s)
        except subprocess.TimeoutExpired:
            raise ConfigError(f"{path}: {_FUNCTION}: it did not return within {time_limit_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # whatever the model has started ends with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.set_blocking(reading, False)
        text = result.read() or b""
    if process.returncode or not text:
        raise ConfigError(f"{path}: {_FUNCTION}: its process exited with status {process.returncode}")
    answer = json.loads(text)
    if "error" in answer:
        raise ConfigError(f"{path}: {_FUNCTION}: {answer['error']}")
    return json.dumps(answer["config"])


def main() -> None:
    """Complete the configuration that is read from the standard input, and write it to `--result`."""
    parser = argparse.ArgumentParser(prog=__name__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--result", type=int, required=True, metavar="FD")
    options = parser.parse_args()
    os.set_inheritable(options.result, False)
    from sluice.models.backends.python_models.model import import_model, last_line

    config = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        model = getattr(import_model(options.path, config["name"]), "TritonPythonModel", None)
        complete = getattr(model, _FUNCTION, None)
        completed = ModelConfig(config) if complete is None else complete(ModelConfig(config))
        if not isinstance(completed, ModelConfig):
            raise TypeError(f"expected it to return the configuration, got {type(completed).__name__}")
        answer = {"config": completed.as_dict()}
        text = json.dumps(answer)
    except (Exception, SystemExit) as error:
        message = last_line(error, options.path).encode("utf-8", "replace").decode()
        text = json.dumps({"error": message[:_MAX_MESSAGE]})
    with open(options.result, "wb") as result:
        result.write(text.encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
