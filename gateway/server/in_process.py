"""A gateway without sockets, for callers in the same process: the load generator's target `inproc:`."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from sluice.batcher.interface.outcome import ANSWERED
from sluice.gateway.config.server_config import ServerConfig, read_config
from sluice.gateway.deployment.read import fetch_sources, read_models
from sluice.gateway.inference.dataplane import Submitted
from sluice.gateway.observability.logs import LogFormat, configure
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.request import InferRequest, WireTensor
from sluice.gateway.protocol.signature import Signature
from sluice.gateway.protocol.status import http_status, outcome_error
from sluice.gateway.server.wiring import Gateway, build_gateway
from sluice.models.errors import ConfigError, PartitionError, ServingError
from sluice.models.tensors.arrays import Array, WireBytes, datatype_of, decode_bytes, encode_bytes
from sluice.models.tensors.spec import DataType, TensorSpec

CONFIG_VARIABLE = "SLUICE_CONFIG"
_EXPLAIN = "sluice_explain"
_STAGES = "x-sluice-stages"
_OVERLOAD = (429, 503, 504)
_START_TIMEOUT_S = 120.0
_DRAIN_TIMEOUT_S = 5.0

Done = Callable[[str, Mapping[str, Array], str, str], None]


class PreparedRequest:
    """A request to a model, and the same request with the wish for an explanation."""

    __slots__ = ("explained", "plain", "signature")

    def __init__(self, signature: Signature, tensors: list[WireTensor], parameters: Mapping[str, float | int]) -> None:
        self.signature = signature
        self.plain = InferRequest(tensors, parameters=parameters)
        self.explained = InferRequest(tensors, parameters={**parameters, _EXPLAIN: True})


class SocketlessGateway:
    """All of a server but its sockets: scheduler, data plane, workers. A request is a call of `submit`.

    To be used on one event loop. Front ends, management and metrics are not served.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._gateway: Gateway | None = None

    async def start(self) -> None:
        """Start the workers, and return when all are up and have loaded their models.

        Raises `ServingError` for settings that cannot be met, or models that do not load.
        """
        config = self._config
        await asyncio.to_thread(fetch_sources, config)
        gateway = self._gateway = build_gateway(config, read_models(config.repositories, (), config), None)
        gateway.runtime.start()
        watched = [gateway.inventory.in_service, gateway.inventory.refused, gateway.runtime.failed]
        tasks = [asyncio.create_task(each.wait()) for each in watched]
        await asyncio.wait(tasks, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if not gateway.inventory.in_service.is_set():
            raise PartitionError(gateway.inventory.refusal or f"the workers are not up after {_START_TIMEOUT_S:g} s")

    def metadata(self, model: str) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The inputs and outputs of a model or pipeline as clients see them; raises `ServingError` for none."""
        pipeline = self._running.dataplane.signature(model, "").pipeline
        inputs, outputs = (
            [TensorSpec(tensor.name, tensor.datatype, pipeline.wire_shape(tensor)) for tensor in side]
            for side in (pipeline.inputs, pipeline.outputs)
        )
        return inputs, outputs

    def prepare(self, model: str, tensors: Mapping[str, Array], parameters: Mapping[str, float | int]) -> object:
        """A request as `submit` takes it."""
        wire = [
            WireTensor(name, datatype_of(array.dtype), array.shape, _data(array)) for name, array in tensors.items()
        ]
        return PreparedRequest(self._running.dataplane.signature(model, ""), wire, parameters)

    def submit(self, request: object, done: Done, explain: bool) -> object:
        """Check a request and hand it to the scheduler; `done` is called when it has ended, with views of its outputs.

        `done` gets `ok`, `shed` or `error`, the outputs, the reason of a failure, and the header `x-sluice-stages` of
        a request that is to `explain` itself.
        """
        prepared = cast(PreparedRequest, request)
        dataplane = self._running.dataplane
        try:
            inputs, options = dataplane.check(prepared.signature, prepared.explained if explain else prepared.plain)
            submission = dataplane.submit(prepared.signature, inputs, options)
        except ServingError as error:
            done(_word(error), {}, str(error), "")
            return None

        def answered(answer: Answer) -> None:
            stages = dict(submission.explanation()).get(_STAGES, "") if explain else ""
            try:
                if answer.outcome in ANSWERED:
                    done("ok", {name: _array(tensor) for name, tensor in answer.outputs.items()}, "", stages)
                else:
                    error = outcome_error(answer.outcome, answer.reason, answer.retry_after_s, failure=answer.failure)
                    done(_word(error), {}, str(error), stages)
            finally:
                answer.release()

        submission.then(answered)
        return submission

    def cancel(self, call: object) -> None:
        """Tell the scheduler that nobody waits for a request."""
        if call is not None:
            self._running.dataplane.cancel(cast(Submitted, call))

    async def stop(self) -> None:
        """End the open requests and the workers."""
        gateway, self._gateway = self._gateway, None
        if gateway is None:
            return
        gateway.registry.start_draining()
        await gateway.runtime.drain(_DRAIN_TIMEOUT_S)
        gateway.deployer.close()
        gateway.runtime.close()
        await gateway.executor.drain()

    @property
    def _running(self) -> Gateway:
        assert self._gateway is not None, "the gateway is started first"
        return self._gateway


def configured() -> SocketlessGateway:
    """The gateway of the configuration file that the environment variable SLUICE_CONFIG names.

    Its warnings go to standard error.
    """
    path = os.environ.get(CONFIG_VARIABLE)
    if not path:
        raise ConfigError(f"{CONFIG_VARIABLE}: expected the configuration file of the gateway, got nothing")
    configure(LogFormat.TEXT, "warning")
    return SocketlessGateway(read_config(Path(path)))


def _data(array: Array) -> bytes:
    return encode_bytes(array, rows=1)[0] if datatype_of(array.dtype) is DataType.BYTES else array.tobytes()


def _array(tensor: Array | WireBytes) -> Array:
    if isinstance(tensor, np.ndarray):
        return tensor
    first, *_, end = tensor.row_offsets
    return decode_bytes(bytes(tensor.buffer[first:end]), tensor.shape)


def _word(error: ServingError) -> str:
    return "shed" if http_status(error) in _OVERLOAD else "error"
