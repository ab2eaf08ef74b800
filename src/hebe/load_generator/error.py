"""The errors of a load that cannot be sent."""


class LoadError(Exception):
    """The server or the model cannot be driven as asked; the message names what is wrong and what to do."""


class LoadUsageError(LoadError):
    """What is asked for is no load, whichever server it is for; the message names the field."""
