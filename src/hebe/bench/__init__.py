"""Benchmarks that users run too: `hebe bench NAME`."""
