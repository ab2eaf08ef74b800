"""Sends queries at their scheduled times."""
