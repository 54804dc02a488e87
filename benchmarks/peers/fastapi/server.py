"""FastAPI: the bytes of the tensor in and out, and the model on the event loop. It has no batches.

After https://fastapi.tiangolo.com/advanced/using-request-directly.
"""

import os
from collections.abc import Callable

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from served_models import Served, chosen

app = FastAPI()


def add(served: Served, run: Callable[[np.ndarray], np.ndarray]) -> None:
    """Serve a model at its name."""

    @app.post(f"/{served.name}")
    async def predict(request: Request) -> Response:
        answer = run(served.rows_of(await request.body()))
        return Response(answer.tobytes(), media_type="application/octet-stream")


for each in chosen():
    add(each, each.open())

if __name__ == "__main__":
    port = int(os.environ["PEERS_HTTP_PORT"])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", access_log=False)
