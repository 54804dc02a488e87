"""Inference over gRPC: ModelInfer calls and the requests of streams."""

import asyncio
from functools import partial
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from sluice.gateway.grpc.codec import decode_request, encode_response
from sluice.gateway.grpc.errors import PassedStatus, ResponseMetadata, call_status, parse_version
from sluice.gateway.grpc.relayed import CallRelay, Ended
from sluice.gateway.grpc.replies import FINAL_RESPONSE, replies
from sluice.gateway.grpc.transport.call import Message, ServerCall, SplitMessage
from sluice.gateway.grpc.transport.fields import LARGE_BYTES, check_fields
from sluice.gateway.inference.dataplane import (
    EXPLAIN_HEADER,
    DataPlane,
    Submitted,
    asks_for_explanation,
    build_response,
)
from sluice.gateway.inference.request_template import RequestTemplate
from sluice.gateway.observability.load_report import LOAD_FORMAT_HEADER, LoadFormat, load_format
from sluice.gateway.observability.traces.context import OVER_GRPC, TraceContext, parse_context
from sluice.gateway.protocol.answer import Answer
from sluice.gateway.protocol.pending_answer import RelayNeeded
from sluice.gateway.protocol.request import InferResponse
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.gateway.protocol.signature import Signature
from sluice.models.errors import RequestError
from sluice.models.tensors.arrays import Buffer
from sluice.models.units import NS_PER_S

MAX_TEMPLATES = 64
"""Request templates that are remembered."""

_KEY_BYTES = 32
"""Templates are looked up by the length of a request and this many of its first bytes, which name the model."""
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_FINAL_MARK = "triton_enable_empty_final_response"
_RAW_INPUTS = service_pb2.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUTS = service_pb2.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER


class ResponseEncoder:
    """Encodes the responses to one request, or to all requests of a template."""

    __slots__ = ("_frames", "_head", "_shapes", "_signature", "marks_final", "options")

    def __init__(self, signature: Signature, options: RequestOptions, marks_final: bool) -> None:
        self.options = options
        self._signature = signature
        self.marks_final = marks_final
        self._shapes: list[tuple[int, ...]] | None = None
        self._head = b""
        self._frames: list[bytes] = []

    def message(self, response: InferResponse) -> Any:
        """The ModelInferResponse of a response."""
        message = encode_response(response, self._signature)
        if self.marks_final:
            message.parameters[FINAL_RESPONSE].bool_param = True
        return message

    def stream_message(self, response: InferResponse, is_final: bool) -> Any:
        """The ModelStreamInferResponse with a response of a decoupled model."""
        message = encode_response(response, self._signature)
        message.parameters[FINAL_RESPONSE].bool_param = is_final
        return service_pb2.ModelStreamInferResponse(infer_response=message)

    def empty_final(self) -> Any:
        """The ModelStreamInferResponse that only says that there are no more."""
        signature = self._signature
        message = service_pb2.ModelInferResponse(
            model_name=signature.name, model_version=signature.version, id=self.options.id
        )
        message.parameters[FINAL_RESPONSE].bool_param = True
        return service_pb2.ModelStreamInferResponse(infer_response=message)

    def encode(self, response: InferResponse) -> bytes:
        """The ModelInferResponse in bytes. From the second response of the same shapes on, the head is reused."""
        arrays = [values for _, values in response.outputs if isinstance(values, np.ndarray)]
        shapes = [array.shape for array in arrays]
        if shapes != self._shapes or len(arrays) < len(response.outputs):
            message = self.message(response)
            encoded: bytes = message.SerializeToString()
            if self._shapes is None:  # it may be the only response
                self._shapes = []
            else:
                del message.raw_output_contents[:]
                self._head, self._shapes = message.SerializeToString(), shapes
                self._frames = [_frame(_RAW_OUTPUTS, array.nbytes) for array in arrays]
            return encoded
        parts: list[Buffer] = [self._head]
        for frame, array in zip(self._frames, arrays, strict=True):
            parts += (frame, array.data if array.flags.c_contiguous else array.tobytes())
        return b"".join(parts)


class KnownTemplate:
    """A template of earlier requests, their model and version ("" for the latest), and the encoder of responses."""

    __slots__ = ("encoder", "head_bytes", "model", "template", "version")

    def __init__(
        self, model: str, version: str, template: RequestTemplate, head_bytes: int, encoder: ResponseEncoder
    ) -> None:
        self.model = model
        self.version = version
        self.template = template
        self.head_bytes = head_bytes
        self.encoder = encoder


class InferHandler:
    """Submits inference requests to the data plane and encodes its answers.

    A message has at most `max_parsed_bytes` beside its raw contents. A data plane that raises RelayNeeded has a
    `relay`.
    """

    def __init__(
        self, dataplane: DataPlane, max_parsed_bytes: int = LARGE_BYTES, relay: CallRelay | None = None
    ) -> None:
        self._dataplane = dataplane
        self._relay = relay
        self._max_parsed_bytes = max_parsed_bytes
        self._templates: dict[tuple[int, bytes], KnownTemplate] = {}

    def memory(self, size: int, first: bytes) -> tuple[int, memoryview] | None:
        """Memory for the tensor of a large message that begins like an earlier one; the head comes before it."""
        known = self._templates.get((size, first[:_KEY_BYTES]))
        if known is None or not known.template.begins(first):
            return None
        tensor = self._dataplane.memory(size - known.head_bytes)
        return None if tensor is None else (known.head_bytes, tensor)

    def begin(self, body: Message, call: ServerCall) -> None:
        """Start the call whose message is a ModelInferRequest of these bytes."""
        try:
            explain, load = _asked(call)
            if load is not None and self._relay is not None:
                raise RelayNeeded  # the load is known there
            submission, encoder = self._ask(body, call, explain)
        except RelayNeeded:
            self._pass_on(call, body)
            return
        except Exception as error:
            call.end(*call_status(error))
            return
        call.on_cancelled = partial(self._dataplane.cancel, submission)
        relayed = None if self._relay is None else partial(self._pass_on, call, body)
        submission.then(partial(self._answered, call, submission, encoder, explain, load), relayed)

    def _pass_on(self, call: ServerCall, body: Message) -> None:
        """Have the gateway's process answer a call."""
        if call.cancelled:
            return
        assert self._relay is not None, "only its data plane asks for it"
        asking = asyncio.get_running_loop().create_task(self._relay.ask(call, _joined(body)))
        call.on_cancelled = asking.cancel
        asking.add_done_callback(partial(self._passed_on, call))

    def _passed_on(self, call: ServerCall, asking: "asyncio.Task[Ended]") -> None:
        if asking.cancelled():
            return
        if (error := asking.exception()) is not None:
            call.end(*call_status(error if isinstance(error, Exception) else RuntimeError(error)))
            return
        ended = asking.result()
        if ended.code is grpc.StatusCode.OK:
            call.set_trailing_metadata(ended.trailing)
            call.finish(ended.message)
        else:
            call.end(ended.code, ended.details, ended.trailing)

    def parse(self, body: bytes) -> Any:
        """The ModelInferRequest of these bytes. Raises RequestError."""
        check_fields(body, _RAW_INPUTS, self._max_parsed_bytes)
        try:
            return service_pb2.ModelInferRequest.FromString(body)
        except DecodeError as error:
            raise RequestError(f"the message is not a ModelInferRequest: {error}") from error

    async def message(self, request: Any, context: Any, metadata: ResponseMetadata) -> Any:
        """The ModelInferResponse to a ModelInferRequest, or the `Replies` to that of a decoupled model.

        `metadata` receives the names and values that accompany the answer, even if it is an error.
        """
        explain, _ = _asked(context)
        kept = b"" if self._relay is None else request.SerializeToString()
        try:
            signature, inputs, encoder = self._check(request, _budget_ns(context))
            options = _explained(explain, encoder.options)
            if signature.pipeline.decoupled:
                if self._relay is not None:
                    return self._relay.stream(context, kept, service_pb2.ModelStreamInferResponse.FromString)
                client = _client(signature, context)
                responses = self._dataplane.open_responses(signature, inputs, options, client, _trace(context))
                return replies(responses, encoder)
            client = _client(signature, context)
            submission = self._dataplane.submit(signature, inputs, options, client, _trace(context))
            answer = await self._dataplane.answer(submission)
        except RelayNeeded:
            assert self._relay is not None, "only its data plane asks for it"
            ended = await self._relay.ask(context, kept, _INFER)
            metadata += ended.trailing
            if ended.code is not grpc.StatusCode.OK:
                raise PassedStatus(ended.code, ended.details) from None
            return service_pb2.ModelInferResponse.FromString(ended.message)
        metadata += self._dataplane.response_headers(submission, explain or encoder.options.explain)
        response = build_response(answer, encoder.options, self._dataplane.statuses)
        try:
            return encoder.message(response)
        finally:
            response.release()

    def _answered(
        self,
        call: ServerCall,
        submission: Submitted,
        encoder: ResponseEncoder,
        explain: bool,
        load: LoadFormat | None,
        answer: Answer,
    ) -> None:
        metadata: ResponseMetadata = []
        try:
            if call.cancelled:
                return
            metadata = self._metadata(submission, explain or encoder.options.explain, load)
            reply = encoder.encode(build_response(answer, encoder.options, self._dataplane.statuses))
        except Exception as error:
            call.end(*call_status(error, metadata))
        else:
            call.set_trailing_metadata(metadata)
            call.finish(reply)
        finally:
            answer.release()

    def _metadata(self, submission: Submitted, explain: bool, load: LoadFormat | None) -> ResponseMetadata:
        """The metadata of an answer: what the client asked for besides."""
        headers: ResponseMetadata = [*self._dataplane.response_headers(submission, explain)]
        report = self._dataplane.load_report
        if load is not None and report is not None:
            headers += report.metadata(load)
        return headers

    def _ask(self, message: Message, call: ServerCall, explain: bool) -> tuple[Submitted, ResponseEncoder]:
        """Submit a request. A request that matches a template is not parsed again."""
        remaining_ns = _budget_ns(call)
        budget_ns = None if remaining_ns is None else remaining_ns - self._dataplane.network_ns
        body, tensor = message if isinstance(message, SplitMessage) else (message, None)
        if tensor is None:
            key = len(body), body[:_KEY_BYTES]
        else:
            key = len(body) + len(tensor), (body + tensor[:_KEY_BYTES])[:_KEY_BYTES]
        known = self._templates.get(key)
        if known is not None and known.template.matches(body, known.head_bytes, known.template.signature, tensor):
            signature = self._dataplane.signature(known.model, known.version)
            if signature is known.template.signature:
                inputs, client = known.template.tensors(body, tensor), _client(signature, call)
                options = _explained(explain, _within(budget_ns, known.template.options))
                return self._dataplane.submit(signature, inputs, options, client, _trace(call)), known.encoder
        body = _joined(message)
        request = self.parse(body)
        signature, inputs, encoder = self._check(request, None, one_response="ModelInfer RPC")
        raw = request.raw_input_contents
        if not request.id and len(raw) == len(inputs) == 1:  # ids differ from call to call
            head_bytes = len(body) - len(raw[0])
            template = RequestTemplate(body, head_bytes, signature, inputs, encoder.options, ())
            if template.repeatable and body.endswith(_frame(_RAW_INPUTS, len(raw[0])), 0, head_bytes):
                if len(self._templates) >= MAX_TEMPLATES:
                    self._templates.clear()
                self._templates[key] = KnownTemplate(
                    request.model_name, request.model_version, template, head_bytes, encoder
                )
        options = _explained(explain, _within(budget_ns, encoder.options))
        client = _client(signature, call)
        return self._dataplane.submit(signature, inputs, options, client, _trace(call)), encoder

    def _check(
        self, request: Any, budget_ns: int | None, one_response: str = ""
    ) -> tuple[Signature, Any, ResponseEncoder]:
        marks_final = _takes_final_mark(request.parameters)
        signature = self._dataplane.signature(request.model_name, parse_version(request.model_version))
        inputs, options = self._dataplane.check(
            signature, decode_request(request), budget_ns, one_response=one_response
        )
        return signature, inputs, ResponseEncoder(signature, options, marks_final)


def _joined(message: Message) -> bytes:
    return message.joined() if isinstance(message, SplitMessage) else message


def _budget_ns(context: Any) -> int | None:
    """The time until the client's deadline; None without one."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else int(remaining_s * NS_PER_S)


def _within(budget_ns: int | None, options: RequestOptions) -> RequestOptions:
    """The options with the client's own deadline, if that is sooner."""
    return options if budget_ns is None or budget_ns >= options.budget_ns else options._replace(budget_ns=budget_ns)


def _explained(explain: bool, options: RequestOptions) -> RequestOptions:
    """The options with an explanation, if the call's metadata asks for one."""
    return options._replace(explain=True) if explain and not options.explain else options


def _asked(context: Any) -> tuple[bool, LoadFormat | None]:
    """True if the call's metadata asks for an explanation, and the format of the load report that it asks for."""
    explain, load = False, None
    for name, value in context.invocation_metadata():
        if name == EXPLAIN_HEADER:
            explain = asks_for_explanation(value) or explain
        elif name == LOAD_FORMAT_HEADER:
            load = load_format(value)
    return explain, load


def _client(signature: Signature, context: Any) -> str:
    """The client that the call's metadata names."""
    key = signature.client_key
    return "" if key is None else key.in_metadata(context.invocation_metadata())


def _trace(context: Any) -> TraceContext:
    """The trace that the call's metadata names."""
    for name, value in context.invocation_metadata():
        if name == "traceparent":
            states = [each for key, each in context.invocation_metadata() if key == "tracestate"]
            return parse_context(value, ",".join(states), OVER_GRPC)
    return OVER_GRPC


def _takes_final_mark(parameters: Any) -> bool:
    """True if the response is to be marked as the last one; the parameter is removed."""
    if not parameters or _FINAL_MARK not in parameters:
        return False
    value = parameters[_FINAL_MARK]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise RequestError(f"parameter '{_FINAL_MARK}' must be true or false")
    marks = value.bool_param
    del parameters[_FINAL_MARK]
    return bool(marks)


def _frame(field: int, size: int) -> bytes:
    """The bytes in front of `size` bytes of a protobuf field."""
    frame = [field << 3 | 2]
    while size > 127:
        frame.append(size & 127 | 128)
        size >>= 7
    return bytes((*frame, size))
