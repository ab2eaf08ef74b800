"""Admission, splitting and batching on one server (Hercules)."""
