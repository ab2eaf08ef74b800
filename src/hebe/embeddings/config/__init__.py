"""The configuration of an embedding hierarchy."""
