"""The embedding cache in host memory."""
