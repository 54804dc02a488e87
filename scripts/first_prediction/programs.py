"""The files that a user of each server writes, as its own documentation does it, for a model and for a cascade.

The models are two classifiers of digits, `logreg.onnx` and `rf1024.onnx`. In the cascade, the second one runs for the
rows of which the first is less than 90 % sure. Users of Sluice write no file: `sluice init` does.
"""

LITSERVE_MODEL = """\
import litserve as ls
import numpy as np
import onnxruntime as ort


class Digits(ls.LitAPI):
    def setup(self, device):
        self.model = ort.InferenceSession("logreg.onnx")

    def decode_request(self, request):
        return np.array(request["x"], np.float32)

    def predict(self, x):
        return self.model.run(None, {"x": x})[0]

    def encode_response(self, probs):
        return {"probs": probs.tolist()}


if __name__ == "__main__":
    ls.LitServer(Digits(), accelerator="cpu").run(port=8000)
"""
"""After https://lightning.ai/docs/litserve/get-started."""

LITSERVE_CASCADE = """\
import litserve as ls
import numpy as np
import onnxruntime as ort


class Digits(ls.LitAPI):
    def setup(self, device):
        self.small = ort.InferenceSession("logreg.onnx")
        self.large = ort.InferenceSession("rf1024.onnx")

    def decode_request(self, request):
        return np.array(request["x"], np.float32)

    def predict(self, x):
        probs = self.small.run(None, {"x": x})[0]
        unsure = probs.max(axis=1) < 0.9
        if unsure.any():
            probs[unsure] = self.large.run(None, {"x": x[unsure]})[0]
        return probs

    def encode_response(self, probs):
        return {"probs": probs.tolist()}


if __name__ == "__main__":
    ls.LitServer(Digits(), accelerator="cpu").run(port=8000)
"""
"""The page above has two models in one class as well."""

BENTOML_MODEL = """\
import bentoml
import numpy as np
import onnxruntime as ort


@bentoml.service
class Digits:
    def __init__(self):
        self.model = ort.InferenceSession("logreg.onnx")

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.model.run(None, {"x": x.astype(np.float32)})[0]
"""
"""After https://docs.bentoml.com/en/latest/get-started/quickstart.html."""

BENTOML_CASCADE = """\
import bentoml
import numpy as np
import onnxruntime as ort


@bentoml.service
class Small:
    def __init__(self):
        self.model = ort.InferenceSession("logreg.onnx")

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.model.run(None, {"x": x.astype(np.float32)})[0]


@bentoml.service
class Large:
    def __init__(self):
        self.model = ort.InferenceSession("rf1024.onnx")

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.model.run(None, {"x": x.astype(np.float32)})[0]


@bentoml.service
class Cascade:
    small = bentoml.depends(Small)
    large = bentoml.depends(Large)

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        probs = np.array(self.small.predict(x=x))
        unsure = probs.max(axis=1) < 0.9
        if unsure.any():
            probs[unsure] = self.large.predict(x=x[unsure])
        return probs
"""
"""After https://docs.bentoml.com/en/latest/get-started/model-composition.html."""

RAY_MODEL = """\
import numpy as np
import onnxruntime as ort
from ray import serve
from starlette.requests import Request


@serve.deployment
class Digits:
    def __init__(self):
        self.model = ort.InferenceSession("logreg.onnx")

    async def __call__(self, request: Request):
        x = np.array((await request.json())["x"], np.float32)
        return {"probs": self.model.run(None, {"x": x})[0].tolist()}


app = Digits.bind()
"""
"""After https://docs.ray.io/en/latest/serve/index.html."""

RAY_CASCADE = """\
import numpy as np
import onnxruntime as ort
from ray import serve
from starlette.requests import Request


@serve.deployment(ray_actor_options={"num_cpus": 0.5})
class Model:
    def __init__(self, file):
        self.model = ort.InferenceSession(file)

    def predict(self, x):
        return self.model.run(None, {"x": x})[0]


@serve.deployment(ray_actor_options={"num_cpus": 0.5})
class Cascade:
    def __init__(self, small, large):
        self.small = small
        self.large = large

    async def __call__(self, request: Request):
        x = np.array((await request.json())["x"], np.float32)
        probs = np.array(await self.small.predict.remote(x))
        unsure = probs.max(axis=1) < 0.9
        if unsure.any():
            probs[unsure] = await self.large.predict.remote(x[unsure])
        return {"probs": probs.tolist()}


small = Model.options(name="Small").bind("logreg.onnx")
large = Model.options(name="Large").bind("rf1024.onnx")
app = Cascade.bind(small, large)
"""
"""After https://docs.ray.io/en/latest/serve/model_composition.html. By default each class takes a whole core."""
