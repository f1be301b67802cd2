"""Exceptions, each with its command-line exit code."""


class EpifalconError(Exception):
    """Base class of all errors that epifalcon raises on purpose."""

    exit_code = 1


class SettingsError(EpifalconError, ValueError):
    """A setting, argument or command is unknown or invalid: change it."""

    exit_code = 2


class DataError(EpifalconError, ValueError):
    """The input data is not what was expected: correct the file."""

    exit_code = 3


class BudgetExceededError(EpifalconError):
    """A release would exceed the privacy budget; nothing was released."""

    exit_code = 4


class CorruptFileError(EpifalconError):
    """A file that epifalcon wrote has changed since, or is incomplete."""

    exit_code = 5


class WriteError(EpifalconError, OSError):
    """The output cannot be written there: choose another path."""

    exit_code = 6


class TooFewSitesError(EpifalconError):
    """Too few sites remain: the work so far is stored and can be resumed."""

    exit_code = 7


class UnreachableError(EpifalconError):
    """The server of a federation cannot be reached, or refuses the connection."""

    exit_code = 8


class StoppedError(EpifalconError):
    """The user stopped the work: the work so far is stored and can be resumed."""

    exit_code = 130
