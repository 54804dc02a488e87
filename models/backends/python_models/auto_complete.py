"""Completes the configuration of a model in Python by its function `auto_complete_config`.

The function is the model's code, so it runs in a process of its own, `python -m` this module, which ends then.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sluice.models.backends.python_models.config_builder import ModelConfig
from sluice.models.errors import ConfigError
from sluice.models.processes import module_environment

TIME_LIMIT_S = 60.0
_GRACE_S = 1
_FUNCTION = "auto_complete_config"
_MAX_MESSAGE = 2000
_MAX_SOURCE_BYTES = 16 << 20
_MAX_RESULT_BYTES = 16 << 20


def completes_config(path: Path) -> bool:
    """Return whether the text of a model has the function; a file that cannot be read, or is too large, has not."""
    try:
        with path.open("rb") as file:
            return _FUNCTION.encode() in file.read(_MAX_SOURCE_BYTES)
    except OSError:
        return False


def auto_complete(path: Path, config: str, time_limit_s: float = TIME_LIMIT_S) -> str:
    """Return a configuration, in JSON, as the model of the file `path` completes it; raises ConfigError."""
    result = os.memfd_create("sluice-auto-complete", os.MFD_CLOEXEC)  # unlike a pipe, it takes an answer of any size
    try:
        return _run(path, config, time_limit_s, result)
    finally:
        os.close(result)


def _run(path: Path, config: str, time_limit_s: float, result: int) -> str:
    """The same; the process writes its answer to the file `result`."""
    arguments = ["--path", str(path), "--result", str(result), "--limit", str(math.ceil(time_limit_s))]
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *arguments],
            env=module_environment(),
            stdin=subprocess.PIPE,
            pass_fds=(result,),
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(f"{path}: {_FUNCTION}: its process cannot be started: {error}") from error
    try:
        process.communicate(config.encode(), time_limit_s)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{path}: {_FUNCTION}: it did not return within {time_limit_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # whatever the model has started ends with it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    text = os.pread(result, _MAX_RESULT_BYTES, 0)
    if process.returncode or not text:
        raise ConfigError(f"{path}: {_FUNCTION}: its process exited with status {process.returncode}")
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ConfigError(f"{path}: {_FUNCTION}: its process wrote no configuration") from None
    if "error" in answer:
        raise ConfigError(f"{path}: {_FUNCTION}: {answer['error']}")
    return json.dumps(answer["config"])


def main() -> None:
    """Complete the configuration that is read from the standard input, and write it to `--result`."""
    parser = argparse.ArgumentParser(prog=__name__)
    parser.add_argument("--path", required=True)
    parser.add_argument("--result", type=int, required=True, metavar="FD")
    parser.add_argument("--limit", type=int, required=True, metavar="SECONDS")
    options = parser.parse_args()
    os.set_inheritable(options.result, False)
    signal.alarm(options.limit + _GRACE_S)  # if the server that waits for it is killed
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
