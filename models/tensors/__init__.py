"""Tensors: datatypes, shapes, and arrays in the wire form of the protocol."""
