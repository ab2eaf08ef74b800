"""Offline decisions: which servers to have, and what runs on them. Pure: figures in, a plan out."""
