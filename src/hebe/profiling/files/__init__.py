"""What profiling writes and reads: profiles, journals, points."""
