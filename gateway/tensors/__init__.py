"""Tensors of open requests and the assembly of batches from them."""
