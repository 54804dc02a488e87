"""The messages of V2 under the name that they give as their module, by which Ray copies them."""

from tritonclient.grpc.service_pb2 import *  # noqa: F403
