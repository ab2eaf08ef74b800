"""Measuring a model on this server: which split of it reaches most within the SLA target, and what that costs."""
