"""Formulas of waiting and of shared resources."""
