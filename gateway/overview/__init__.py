"""The overview: a document of what the server does now, sampled only while somebody looks."""
