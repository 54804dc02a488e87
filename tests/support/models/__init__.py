"""Models that tests write: ONNX files, timed and held models, ensembles."""
