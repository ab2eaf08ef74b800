"""Applies an update log to stores."""
