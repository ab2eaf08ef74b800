"""Runs of a fleet, and what it can take."""
