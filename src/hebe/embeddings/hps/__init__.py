"""What NVIDIA's HPS had: its configuration, its files, its Python interface."""
