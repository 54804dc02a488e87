"""The replies to a request of a decoupled model within a stream of requests."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol, TypeAlias

from sluice.gateway.inference.dataplane import build_model_response
from sluice.gateway.inference.response_stream import ResponseStream
from sluice.gateway.protocol.request import InferResponse
from sluice.gateway.protocol.request_options import RequestOptions
from sluice.models.errors import ServingError

FINAL_RESPONSE = "triton_final_response"
"""The parameter of a response that says whether it is the last one to its request."""
Replies: TypeAlias = AsyncGenerator[tuple[Any, bool], None]
"""The replies to a request: a ModelStreamInferResponse or an error, and whether it is the last one."""


class ReplyEncoder(Protocol):
    """Encodes the responses to one request; `marks_final` if its client wants to hear of the end in any case."""

    options: RequestOptions
    marks_final: bool

    def stream_message(self, response: InferResponse, is_final: bool) -> Any:
        """The ModelStreamInferResponse with a response."""
        ...

    def empty_final(self) -> Any:
        """The ModelStreamInferResponse that only says that there are no more."""
        ...


async def replies(responses: ResponseStream, encoder: ReplyEncoder) -> Replies:
    """The replies to a request of a decoupled model; leaving off cancels it."""
    is_marked = False
    try:
        while (response := await responses.next()) is not None:
            is_final = is_marked = response.is_final
            if response.is_empty:
                is_marked = False
                response.release()
            elif response.error is not None:
                response.release()
                yield response.error, is_final
            else:
                encoded = build_model_response(response, encoder.options)
                try:
                    reply = encoder.stream_message(encoded, is_final)
                finally:
                    encoded.release()
                yield reply, is_final
        if encoder.marks_final and not is_marked:
            yield encoder.empty_final(), True
    except ServingError as error:
        yield error, True
    finally:
        responses.close()
