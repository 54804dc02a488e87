"""The operators' page without a server behind it: made-up documents, and a server of them."""
