"""Servers as they were measured."""
