"""The volatile store in the memory of this process."""
