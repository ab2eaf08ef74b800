"""The keys of a batch: how they are laid out, looked up and counted."""
