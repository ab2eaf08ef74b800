"""Architectures, the catalog of published configurations, and the repository on disk."""
