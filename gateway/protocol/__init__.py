"""Inference requests and answers of the KServe V2 protocol, independent of the transport."""
