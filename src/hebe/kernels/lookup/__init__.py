"""Compiled lookups: find keys, deduplicate, gather and pool rows."""
