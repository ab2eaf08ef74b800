"""Drives the scheduler: queries in, batches to workers, scores out."""
