"""Decoupled models in Python: those of Triton's tests, in our words, and one that does as its requests say."""

from pathlib import Path
from textwrap import dedent

_CONFIG = """
backend: "python"
model_transaction_policy {{ decoupled: true }}
{tensors}
"""

REPEAT = '''
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends the elements of IN one by one, each after its DELAY in ms; `execute` returns after WAIT ms."""

    def execute(self, requests):
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            arguments = (request.get_response_sender(), given["IN"], given["DELAY"])
            threading.Thread(target=self.send, args=arguments).start()
            time.sleep(int(given["WAIT"][0]) / 1000)

    def send(self, sender, values, delays):
        for index, (value, delay) in enumerate(zip(values, delays)):
            time.sleep(int(delay) / 1000)
            tensors = [
                pb_utils.Tensor("OUT", np.array([value], np.int32)),
                pb_utils.Tensor("IDX", np.array([index], np.uint32)),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
"""`repeat_int32`."""
REPEAT_TENSORS = """
input [
  { name: "IN" data_type: TYPE_INT32 dims: -1 },
  { name: "DELAY" data_type: TYPE_UINT32 dims: -1 },
  { name: "WAIT" data_type: TYPE_UINT32 dims: 1 }
]
output [ { name: "OUT" data_type: TYPE_INT32 dims: 1 }, { name: "IDX" data_type: TYPE_UINT32 dims: 1 } ]
"""

SQUARE = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Sends the number IN as often as it says; the last response carries the final flag."""

    def execute(self, requests):
        for request in requests:
            number = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            sender = request.get_response_sender()
            for left in reversed(range(number)):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))])
                sender.send(response, flags=0 if left else pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            if not number:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
"""`square_int32`."""
SQUARE_TENSORS = """
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""

SCRIPTED = '''
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Does what the words of PROMPT say, in turn, and ends.

    `say=X` sends the text X, `fail=X` the error X, `raise=X` raises it, `exit` ends the process, `kill` the worker,
    `call=X` calls model X and sends what it answers, `later=X` in a thread of its own, and `locked=X` under a lock;
    `tell` sends the id and the parameters of the request. `drop` returns without a final response, `flood=N:FILE` sends
    N texts of 2000 digits and counts them in a file, `until=FILE` sends texts until the client has gone and notes that.
    """

    def execute(self, requests):
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy().ravel()[0].decode().split()
            sender = request.get_response_sender()
            for word in words:
                name, _, text = word.partition("=")
                if name == "drop":
                    return
                getattr(self, "do_" + name)(request, sender, text)
            sender.send(flags=FINAL)

    def do_say(self, request, sender, text):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", np.array([text.encode()], np.object_))]))

    def do_fail(self, request, sender, text):
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)))

    def do_raise(self, request, sender, text):
        raise ValueError(text)

    def do_call(self, request, sender, model):
        given = pb_utils.Tensor("x", np.array([[2.5]], np.float32))
        if model == "scripted":
            given = pb_utils.Tensor("PROMPT", np.array([b"say=x"], np.object_))
        called = pb_utils.InferenceRequest(model_name=model, requested_output_names=[], inputs=[given])
        answer = called.exec()
        if answer.has_error():
            self.do_fail(request, sender, answer.error().message())
        else:
            self.do_say(request, sender, str(answer.output_tensors()[0].as_numpy().item()))

    def do_later(self, request, sender, model):
        thread = threading.Thread(target=self.do_call, args=(request, sender, model))
        thread.start()
        thread.join()

    lock = threading.Lock()

    def do_locked(self, request, sender, model):
        with self.lock:
            self.do_call(request, sender, model)

    def do_tell(self, request, sender, text):
        self.do_say(request, sender, request.request_id() + request.parameters())

    def do_exit(self, request, sender, text):
        os._exit(1)

    def do_kill(self, request, sender, text):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)

    def do_flood(self, request, sender, text):
        count, path = text.split(":")
        for number in range(int(count)):
            self.do_say(request, sender, str(number).zfill(2000))
            with open(path, "w") as file:
                file.write(str(number + 1))

    def do_until(self, request, sender, path):
        while not request.is_cancelled():
            self.do_say(request, sender, "more")
            time.sleep(0.01)
        assert sender.is_cancelled()
        with open(path, "w") as file:
            file.write("gone")
'''
"""`scripted`."""
SCRIPTED_TENSORS = """
input { name: "PROMPT" data_type: TYPE_STRING dims: 1 }
output { name: "TEXT" data_type: TYPE_STRING dims: 1 }
"""


def save_decoupled(directory: Path, code: str, tensors: str) -> None:
    """Save version 1 of a decoupled model in its directory."""
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(_CONFIG.format(tensors=tensors))
    (directory / "1" / "model.py").write_text(dedent(code))


def save_decoupled_models(repository: Path) -> None:
    """Save all of them."""
    save_decoupled(repository / "repeat_int32", REPEAT, REPEAT_TENSORS)
    save_decoupled(repository / "square_int32", SQUARE, SQUARE_TENSORS)
    save_decoupled(repository / "scripted", SCRIPTED, SCRIPTED_TENSORS)
