"""Baseline: a plain asynchronous server with FastAPI and ONNX Runtime that runs requests one by one, unbatched."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
import uvicorn
from fastapi import FastAPI, Request, Response


def build(model: Path) -> FastAPI:
    """An application that answers V2 requests with one binary FP32 input `x` and a binary output `y`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    app = FastAPI()

    @app.post("/v2/models/mlp/infer")
    async def infer(request: Request) -> Response:
        body = await request.body()
        length = int(request.headers["inference-header-content-length"])
        head = orjson.loads(body[:length])
        array = np.frombuffer(body, np.float32, offset=length).reshape(head["inputs"][0]["shape"])
        (result,) = session.run(None, {"x": array})
        data = result.tobytes()
        tensor = {"name": "y", "datatype": "FP32", "shape": result.shape, "parameters": {"binary_data_size": len(data)}}
        answer = orjson.dumps({"model_name": "mlp", "model_version": "1", "outputs": [tensor]})
        headers = {"Inference-Header-Content-Length": str(len(answer))}
        return Response(answer + data, media_type="application/octet-stream", headers=headers)

    return app


def main() -> None:
    """Serve a model on a free port and write the port to the ready file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("ready_file", type=Path)
    options = parser.parse_args()
    config = uvicorn.Config(
        build(options.model), port=0, loop="uvloop", http="httptools", access_log=False, log_level="warning"
    )
    listener = config.bind_socket()
    draft = options.ready_file.with_suffix(".draft")
    draft.write_text(json.dumps({"http_port": listener.getsockname()[1]}))
    os.rename(draft, options.ready_file)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
