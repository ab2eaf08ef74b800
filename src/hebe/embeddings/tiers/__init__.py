"""Lookups through cache, volatile and persistent store."""
