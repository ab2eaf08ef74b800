"""Meters of power, processor time, memory bandwidth and cache."""
