"""Baseline: the cheapest grpc.aio server. ModelInfer echoes its bytes."""

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

import grpc
import uvloop


async def serve(ready_file: Path) -> None:
    """Serve on a free port until SIGTERM, and write the port to the ready file."""

    async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return request

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    draft = ready_file.with_suffix(".draft")
    draft.write_text(json.dumps({"grpc_port": port}))
    os.rename(draft, ready_file)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ready_file", type=Path)
    uvloop.run(serve(parser.parse_args().ready_file))
