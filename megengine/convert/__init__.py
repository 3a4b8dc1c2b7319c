"""Models of other frameworks in and out: `megengine.convert.onnx`."""
