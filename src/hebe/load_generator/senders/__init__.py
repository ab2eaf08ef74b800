"""Clients that send queries and receive answers."""
