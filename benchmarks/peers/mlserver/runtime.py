"""MLServer: a custom runtime for ONNX, with adaptive batches.

After https://mlserver.readthedocs.io/en/latest/user-guide/custom.html and …/user-guide/adaptive-batching.html.
"""

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from served_models import ALL


class OnnxRuntime(MLModel):
    """A model whose input comes as numbers, or as base64: 602 kB as numbers in JSON take ten times as long to read."""

    async def load(self) -> bool:
        self.served = ALL[self.name]
        self.run_rows = self.served.open()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        (tensor,) = payload.inputs
        if tensor.datatype == "BYTES":
            rows = np.concatenate([self.served.rows_of(each) for each in Base64Codec.decode_input(tensor)])
        else:
            rows = NumpyCodec.decode_input(tensor)
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output(self.served.output, self.run_rows(rows))]
        )
