"""Deployment: which models and pipelines are served, how they are loaded and unloaded, and whether they are ready."""
