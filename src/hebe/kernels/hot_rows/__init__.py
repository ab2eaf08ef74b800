"""Compiled lookups of hot rows."""
