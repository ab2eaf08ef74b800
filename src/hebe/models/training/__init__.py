"""Trains models on Criteo-format data."""
