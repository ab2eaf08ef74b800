"""Searches the highest rate that meets the SLA."""
