"""Requests and answers as data: tensors, queries, errors, settings."""
