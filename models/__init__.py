"""The served models: specifications, pipelines, profiles, the model repository, and the backends that run models."""
