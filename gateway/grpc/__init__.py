"""The gRPC API: protobuf messages to protocol structs and back."""
