"""The command line, a folder or a module a command."""
