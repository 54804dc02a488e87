import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pixels = pb_utils.get_input_tensor_by_name(request, "PIXELS").as_numpy()
            values = pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("VALUES", values)]))
        return responses
