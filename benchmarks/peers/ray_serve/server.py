"""Starts Ray Serve with all models: `deployed.py` says what each does."""

import os
import signal

import ray
from deployed import Deployed
from ray import serve
from ray.serve.config import gRPCOptions
from served_models import chosen

if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=os.environ["PEERS_SCRATCH"])
    servicers = ["tritonclient.grpc.service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server"]
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(os.environ["PEERS_HTTP_PORT"])},
        grpc_options=gRPCOptions(port=int(os.environ["PEERS_GRPC_PORT"]), grpc_servicer_functions=servicers),
    )
    for each in chosen():
        serve.run(Deployed.bind(each.name), name=each.name, route_prefix=f"/{each.name}")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
