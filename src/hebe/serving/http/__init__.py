"""The HTTP front end: routes and codecs."""
