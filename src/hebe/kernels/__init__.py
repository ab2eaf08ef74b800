"""Compiled hot loops, each beside its plain reference."""
