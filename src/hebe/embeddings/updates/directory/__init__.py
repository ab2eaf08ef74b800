"""An update log in a directory."""
