"""The errors of this package; their messages are one sentence for the user."""


class SpecError(ValueError):
    """A card file that can't be used: the message says which file, what is wrong and what is needed."""


class UnknownDevice(SpecError):
    """A name that is that of no shipped card."""
