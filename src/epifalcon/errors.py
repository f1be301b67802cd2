"""The exceptions, each with the exit code of the command line."""


class EpifalconError(Exception):
    """Root of every error that epifalcon raises on purpose."""

    exit_code = 1


class SettingsError(EpifalconError, ValueError):
    """A setting, argument or command word is unknown or impossible: change it."""

    exit_code = 2


class DataError(EpifalconError, ValueError):
    """The data handed in is not what was expected: mend the file."""

    exit_code = 3


class BudgetExceededError(EpifalconError):
    """A release would cost more privacy than was granted: nothing was released."""

    exit_code = 4


class CorruptFileError(EpifalconError):
    """A file that epifalcon wrote has changed since, or is only partly there."""

    exit_code = 5


class WriteError(EpifalconError, OSError):
    """The output cannot be written there: choose another place."""

    exit_code = 6


class TooFewSitesError(EpifalconError):
    """Sites were lost: the work so far is stored and can be resumed."""

    exit_code = 7


class StoppedError(EpifalconError):
    """The user stopped the work: the work so far is stored and can be resumed."""

    exit_code = 130
