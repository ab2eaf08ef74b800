"""Threads that run batches on their cores."""
