"""KServe: its model server, with a model class of one's own for ONNX. It has no batches: KServe's batcher is a sidecar.

After https://kserve.github.io/website/docs/model-serving/predictive-inference/frameworks/custom-predictor.
"""

import os

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from served_models import Served, chosen


class ServedModel(Model):
    def __init__(self, served: Served) -> None:
        super().__init__(served.name)
        self.served = served
        self.run = served.open()
        self.ready = True

    async def get_input_types(self) -> list[dict]:
        return [{"name": self.served.input, "datatype": self.served.datatype, "shape": [-1, *self.served.row]}]

    async def get_output_types(self) -> list[dict]:
        return [{"name": self.served.output, "datatype": "FP32", "shape": [-1, 10]}]

    async def predict(self, payload: InferRequest, headers: dict | None = None) -> InferResponse:
        answer = self.run(payload.inputs[0].as_numpy())
        output = InferOutput(self.served.output, list(answer.shape), "FP32")
        output.set_data_from_numpy(answer, binary_data=True)
        return InferResponse(payload.id or "", self.name, [output])


if __name__ == "__main__":
    ports = {name: int(os.environ[f"PEERS_{name.upper()}"]) for name in ("http_port", "grpc_port")}
    ModelServer(**ports, workers=1, enable_latency_logging=False, access_log_format=None).start(
        [ServedModel(each) for each in chosen()]
    )
