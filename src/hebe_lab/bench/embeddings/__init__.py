"""Benchmarks of lookups, caches, stores and updates."""
