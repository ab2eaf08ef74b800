"""Ranking models as modules of torch."""
