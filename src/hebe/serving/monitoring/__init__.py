"""Metrics, status, logs and traces."""
