"""The descriptions of all routes for the OpenAPI document, with examples that work on the demo's models."""
