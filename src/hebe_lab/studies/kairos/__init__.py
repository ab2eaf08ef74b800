"""Studies of Kairos."""
