import inspect
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pytest

from epifalcon import checks, errors
from epifalcon.errors import DataError, EpifalconError, SettingsError

NO_NUMBERS = [float("nan"), float("inf"), -float("inf"), "3", None, True, [1]]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.positive, [1, 1e-300, np.float32(2), 10**400], [0, -1]),
        (checks.non_negative, [0, np.int64(3)], [-1e-300]),
        (checks.unit_interval, [0, 1, 0.5], [-1e-9, 1 + 1e-9]),
        (partial(checks.at_least, 2), [2, 2.5], [1.999]),
        (partial(checks.whole, 1), [1, np.int32(7)], [0, 1.0, 2.5]),
    ],
)
def test_numbers(check, good, bad):
    for value in good:
        check(clip=value)
    for value in (*bad, *NO_NUMBERS):
        with pytest.raises(SettingsError, match=r"clip="):
            check(clip=value)


def test_one_of():
    checks.one_of(("poi", "area"), kind="poi")
    with pytest.raises(SettingsError, match="kind='grid' must be one of area, poi"):
        checks.one_of(("poi", "area"), kind="grid")


def test_same_length():
    checks.same_length(one=np.zeros(3), other=np.zeros((3, 2)))
    with pytest.raises(DataError, match="one has 3, other has 4"):
        checks.same_length(one=np.zeros(3), other=np.zeros(4))


def test_vectors_are_of_one_length_and_type_and_become_read_only():
    good = np.zeros(3, np.int32)
    checks.vectors({"a": np.int32, "b": np.bool_}, a=good, b=np.zeros(3, np.bool_))
    assert not good.flags.writeable
    for wrong in (np.zeros(2, np.int32), np.zeros(3), np.zeros((3, 1), np.int32)):
        with pytest.raises(DataError):
            checks.vectors({"a": np.int32, "b": np.int32}, a=good, b=wrong)


def family() -> dict[str, type[EpifalconError]]:
    found = dict(inspect.getmembers(errors, inspect.isclass))
    return {name: cls for name, cls in found.items() if cls is not EpifalconError}


def test_exit_codes_are_the_documented_ones():
    codes = {name: cls.exit_code for name, cls in family().items()}
    assert codes == {
        "SettingsError": 2,
        "DataError": 3,
        "BudgetExceededError": 4,
        "CorruptFileError": 5,
        "WriteError": 6,
        "TooFewSitesError": 7,
        "UnreachableError": 8,
        "StoppedError": 130,
    }


def test_callers_may_also_catch_the_built_in_kinds():
    assert issubclass(errors.SettingsError, ValueError)
    assert issubclass(errors.DataError, ValueError)
    assert issubclass(errors.WriteError, OSError)


@dataclass(frozen=True, kw_only=True)
class Declared(checks.Checked):
    """One field of each kind that ``Checked`` knows."""

    number: checks.Positive | None = None
    word: Literal["r0"] | checks.NonNegative = "r0"
    several: tuple[checks.Count, ...] = ()
    pair: tuple[checks.Share, str] = (0.5, "")
    switch: bool = True
    free: str = ""


def test_fields_are_checked_by_their_declared_types():
    Declared(number=3, word=0.5, several=(1, 2), pair=(1, "x"), switch=False, free="x")
    for name, values in {
        "number": [0, "x"],
        "word": ["r1", -1, None],
        "several": [(1, 0)],
        "pair": [(2, "x")],
        "switch": [1, None],
    }.items():
        for value in values:
            with pytest.raises(SettingsError, match=f"{name}="):
                Declared(**{name: value})
