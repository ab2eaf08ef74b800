"""An update log in Redis Streams."""
