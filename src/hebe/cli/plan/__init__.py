"""`hebe plan`: which servers to have, and what runs on them."""
