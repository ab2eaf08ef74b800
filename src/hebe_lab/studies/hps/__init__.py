"""Studies of HPS."""
