"""Asking a tier that may stall or fail."""
