"""The error of a load that cannot be sent."""


class LoadError(Exception):
    """The server or the model cannot be driven as asked; the message names what is wrong and what to do."""
