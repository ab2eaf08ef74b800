"""Studies of Hercules."""
