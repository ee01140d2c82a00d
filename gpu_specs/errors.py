"""What can be wrong with a card: one sentence each, for the person who asked."""


class SpecError(ValueError):
    """A card file that cannot be used: which file, what is wrong, what is needed."""

    exit_code = 2


class UnknownDevice(SpecError):
    """A name that no shipped card answers to."""
