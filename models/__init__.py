"""WHAT is served: errors, tensors, model specs, pipelines, profiles, the repository and the backends."""
