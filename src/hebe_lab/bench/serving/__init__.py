"""Benchmarks of a running server."""
