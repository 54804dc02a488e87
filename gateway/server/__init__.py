"""The composition root: it builds all parts of a server and runs them."""
