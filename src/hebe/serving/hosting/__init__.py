"""The models that a server holds: loading, unloading, their metadata and profiles."""
