import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        labels = json.loads(args["model_config"])["parameters"]["labels"]["string_value"]
        self.labels = np.array([label.encode() for label in labels.split(",")], dtype=np.object_)

    def execute(self, requests):
        responses = []
        for request in requests:
            best = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy().argmax(axis=1)[:, None]
            outputs = [
                pb_utils.Tensor("CLASS", best.astype(np.int64)),
                pb_utils.Tensor("LABEL", self.labels[best]),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
