"""Benchmarks of planners and simulators."""
