"""The open-loop load generator: real requests against any Open Inference Protocol server."""
