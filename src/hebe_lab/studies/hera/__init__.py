"""Studies of Hera."""
