"""Servers that echo, for measuring clients."""
