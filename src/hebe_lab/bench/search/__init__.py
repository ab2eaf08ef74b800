"""Benchmarks of the search for a configuration."""
