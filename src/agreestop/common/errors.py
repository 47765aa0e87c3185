"""The error for bad input: its message says what was given, what is needed and what to do."""


class InputError(ValueError):
    """Something handed to agreestop cannot be used; the message says what to do about it."""
