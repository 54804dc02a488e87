"""LitServe: an API a model, each with a worker process; batches of what waits.

After https://lightning.ai/docs/litserve/features/batching and …/features/multiple-endpoints.
"""

import base64
import os

import litserve
import numpy as np
from served_models import ALL, MOST_ROWS, Served, chosen

WAIT_S = 0.001
"""Without a wait, its worker asks for requests all the time and keeps the core busy."""


class ServedApi(litserve.LitAPI):
    """Rows as lists, or those of images as base64 (a list of a pixel each takes ten times as long to read)."""

    def __init__(self, served: Served, **options: object) -> None:
        super().__init__(api_path=f"/{served.name}", **options)
        self.served = served.name

    def setup(self, device: str) -> None:
        self.run = ALL[self.served].open()

    def decode_request(self, request: dict) -> np.ndarray:
        served = ALL[self.served]
        if "bytes" in request:
            return served.rows_of(base64.b64decode(request["bytes"]))[0]
        return np.array(request["x"], served.dtype)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.run(x)

    def encode_response(self, output: np.ndarray) -> dict:
        return {"y": output.tolist()}


if __name__ == "__main__":
    apis = [ServedApi(each, max_batch_size=MOST_ROWS, batch_timeout=WAIT_S) for each in chosen()]
    server = litserve.LitServer(apis, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(os.environ["PEERS_HTTP_PORT"]), generate_client_file=False, log_level="warning"
    )
