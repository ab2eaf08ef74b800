"""Runs of one server."""
