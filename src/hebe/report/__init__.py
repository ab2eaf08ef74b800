"""Results as documents of blocks, for the terminal and as pages; plots; figures on disk."""
