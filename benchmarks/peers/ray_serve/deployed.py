"""Ray Serve: a deployment a model, with batches of what waits; over gRPC it answers the calls of V2.

After https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html and …/advanced-guides/grpc-guide.html.
"""

import numpy as np
from grpc_service_pb2 import ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse
from ray import serve
from served_models import ALL, MOST_ROWS
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(ray_actor_options={"num_cpus": 0.1}, max_ongoing_requests=4 * MOST_ROWS)
class Deployed:
    """A model behind HTTP and gRPC."""

    def __init__(self, name: str) -> None:
        self.served = ALL[name]
        self.run = self.served.open()

    @serve.batch(max_batch_size=MOST_ROWS, batch_wait_timeout_s=0)
    async def predict(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.run(np.concatenate(requests))[:, None])

    async def __call__(self, request: Request) -> Response:
        answer = await self.predict(self.served.rows_of(await request.body()))
        return Response(answer.tobytes(), media_type="application/octet-stream")

    async def ModelInfer(self, request: ModelInferRequest) -> ModelInferResponse:  # noqa: N802
        answer = await self.predict(self.served.rows_of(request.raw_input_contents[0]))
        response = ModelInferResponse(model_name=request.model_name, raw_output_contents=[answer.tobytes()])
        response.outputs.add(name=self.served.output, datatype="FP32", shape=answer.shape)
        return response

    async def ModelMetadata(self, request: ModelMetadataRequest) -> ModelMetadataResponse:  # noqa: N802
        response = ModelMetadataResponse(name=request.name)
        response.inputs.add(name=self.served.input, datatype=self.served.datatype, shape=[-1, *self.served.row])
        response.outputs.add(name=self.served.output, datatype="FP32", shape=[-1, 10])
        return response
