"""A gRPC client over HTTP/2."""
