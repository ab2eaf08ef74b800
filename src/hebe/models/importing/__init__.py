"""Imports the user's module: captures its graph, cuts out its embeddings."""
