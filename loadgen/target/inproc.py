"""A target in the load generator's own process: what a server does between its sockets."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import TargetModel, Tensors
from sluice.loadgen.target.base import EXPLAIN_EVERY, MAX_OUTSTANDING, QueryListener, TargetRequest
from sluice.models.errors import ConfigError, ServingError
from sluice.models.tensors.spec import TensorSpec

IN_PROCESS = "inproc:"
_STATUSES = {"ok": Status.OK, "shed": Status.SHED, "error": Status.ERROR}

Done: TypeAlias = Callable[[str, Tensors, str, str], None]
"""Takes the end of a call: `ok`, `shed` or `error`; the outputs; the reason of a failure; and the server's times by
stage, as the header `x-sluice-stages` has them, or ""."""


class InProcessServer(Protocol):
    """A server without sockets: what the factory of `inproc:module:factory` returns.

    All methods are called on the event loop. The order of calls is start, metadata, prepare, submit and cancel …, stop.
    """

    async def start(self) -> None:
        """Begin, and return when requests can be served; raises `ServingError`."""

    def metadata(self, model: str) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The inputs and outputs of a model, in the shapes that requests have; raises `ServingError` for no model."""

    def prepare(self, model: str, tensors: Tensors, parameters: Mapping[str, float | int]) -> object:
        """A request as `submit` takes it; it is made once, and submitted many times."""

    def submit(self, request: object, done: Done, explain: bool) -> object:
        """Begin with a request, and call `done` exactly once when it has ended, now or later.

        The outputs need to be valid during that call only. With `explain`, `done` is to get the times by stage. The
        returned object stands for the call in `cancel`.
        """

    def cancel(self, call: object) -> None:
        """Give up a call, whose `done` is ignored from now on."""

    async def stop(self) -> None:
        """End everything that `start` began."""


class InProcessTarget:
    """The server that the factory at `inproc:module:factory` makes, without sockets in between.

    With `max_outstanding` calls under way the next query is dropped. One of `explain_every` queries asks for the times
    by stage; none does with 0.
    """

    def __init__(self, url: str, max_outstanding: int = MAX_OUTSTANDING, explain_every: int = EXPLAIN_EVERY) -> None:
        self._factory = _import_factory(url)
        self._url = url
        self._max_outstanding = max_outstanding
        self._explain_every = explain_every
        self._server: InProcessServer | None = None
        self._requests: dict[int, object] = {}
        self._calls: dict[int, object] = {}
        self._closed = False

    async def metadata(self, model: str) -> TargetModel:
        """Start the server, unless it runs already, and read a model's metadata."""
        if self._server is None:
            self._server = await self._start()
        try:
            inputs, outputs = self._server.metadata(model)
        except ServingError as error:
            raise ConfigError(f"--model {model}: {error}") from error
        except Exception as error:
            raise self._failed("metadata", error) from error
        return TargetModel(tuple(inputs), tuple(outputs))

    async def statistics(self) -> bytes | None:
        """None: what a factory returns has no statistics of the protocol."""
        return None

    async def prepare(self, requests: Mapping[int, TargetRequest], listener: QueryListener, keep_answers: bool) -> None:
        """Prepare all requests."""
        self._listener = listener
        self._keep_answers = keep_answers
        if self._server is None:
            self._server = await self._start()
        server = self._server
        try:
            self._requests = {
                key: server.prepare(request.model, request.tensors, request.parameters())
                for key, request in requests.items()
            }
        except ServingError:
            raise
        except Exception as error:
            raise self._failed("prepare", error) from error

    def issue(self, query: int, request: int) -> None:
        """Submit a request."""
        if len(self._calls) >= self._max_outstanding:
            self._listener.done(query, Status.DROPPED, reason=f"{self._max_outstanding} queries were outstanding")
            return
        explain = self._explain_every > 0 and query % self._explain_every == 0
        self._calls[query] = None
        try:
            call = cast(InProcessServer, self._server).submit(
                self._requests[request], partial(self._done, query), explain
            )
        except BaseException:
            del self._calls[query]
            raise
        self._listener.sent(query)
        if query in self._calls:
            self._calls[query] = call

    def cancel(self, query: int) -> None:
        """Give up a call."""
        if query in self._calls:
            cast(InProcessServer, self._server).cancel(self._calls.pop(query))
            self._listener.done(query, Status.CANCELLED)

    async def close(self) -> None:
        """Stop the server."""
        self._closed = True
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    def decode(self, answer: object, output: str) -> npt.NDArray[np.generic]:
        """One output of a kept answer."""
        outputs = cast(Tensors, answer)
        if output not in outputs:
            raise ConfigError(f"--output {output}: not in the answers; they have {', '.join(sorted(outputs))}")
        return outputs[output]

    async def _start(self) -> InProcessServer:
        try:
            server = cast(InProcessServer, self._factory())
        except ServingError:
            raise
        except Exception as error:
            raise ConfigError(f"--target {self._url}: the factory failed: {error!r}") from error
        missing = [name for name in _METHODS if not callable(getattr(server, name, None))]
        if missing:
            raise ConfigError(f"--target {self._url}: its server has no {', '.join(missing)}")
        try:
            await server.start()
        except BaseException as error:
            await server.stop()
            if isinstance(error, Exception) and not isinstance(error, ServingError):
                raise self._failed("start", error) from error
            raise
        return server

    def _failed(self, method: str, error: Exception) -> ConfigError:
        return ConfigError(f"--target {self._url}: its server's {method} failed: {error!r}")

    def _done(self, query: int, status: str, outputs: Tensors, reason: str, stages: str) -> None:
        if self._closed or self._calls.pop(query, _ABSENT) is _ABSENT:
            return
        if status not in _STATUSES:
            expected = ", ".join(_STATUSES)
            status, reason = "error", f"the server ended a call with {status!r}; expected one of {expected}"
        kept = {name: np.array(array) for name, array in outputs.items()} if self._keep_answers else None
        self._listener.done(query, _STATUSES[status], kept, reason, stages)


_ABSENT = object()
_METHODS = ("start", "metadata", "prepare", "submit", "cancel", "stop")


def _import_factory(url: str) -> Callable[[], object]:
    """The factory at a URL; modules are looked for in the working directory as well."""
    module, _, name = url.removeprefix(IN_PROCESS).partition(":")
    if not (module and name):
        raise ConfigError(f"--target: expected inproc:module:factory, got {url}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ConfigError(f"--target {url}: {error}") from error
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(f"--target {url}: {module} cannot be imported: {error!r}") from error
    if not callable(factory):
        raise ConfigError(f"--target {url}: {module} has no function {name}")
    return cast(Callable[[], object], factory)
