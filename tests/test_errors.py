import inspect

from epifalcon import errors
from epifalcon.errors import EpifalconError


def family() -> dict[str, type[EpifalconError]]:
    found = dict(inspect.getmembers(errors, inspect.isclass))
    return {name: cls for name, cls in found.items() if cls is not EpifalconError}


def test_every_error_has_one_root_and_says_what_to_do():
    for name, cls in family().items():
        assert issubclass(cls, EpifalconError), name
        assert cls.__doc__, name


def test_exit_codes_are_the_documented_ones():
    codes = {name: cls.exit_code for name, cls in family().items()}
    assert codes == {
        "SettingsError": 2,
        "DataError": 3,
        "BudgetExceededError": 4,
        "CorruptFileError": 5,
        "WriteError": 6,
        "TooFewSitesError": 7,
        "StoppedError": 130,
    }


def test_callers_may_also_catch_the_built_in_kinds():
    assert issubclass(errors.SettingsError, ValueError)
    assert issubclass(errors.DataError, ValueError)
    assert issubclass(errors.WriteError, OSError)
