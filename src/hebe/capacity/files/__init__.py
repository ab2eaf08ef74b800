"""The files that plans are made from, and the plan files: read, checked, and as data."""
