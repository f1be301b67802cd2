"""Argument checks that name the value and what was expected.

Every check takes ``name=value`` pairs, so the message can name the setting:
``positive(clip=-1)`` raises ``clip=-1 must be a number greater than 0``. A subclass of
``Checked`` declares the checks of its fields by their types.
"""

import importlib
import math
import re
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cache, partial
from itertools import repeat
from numbers import Integral, Real
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from epifalcon.errors import DataError, SettingsError

T = TypeVar("T")
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def extra_module(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module`` of an optional dependency, or raise with the extra to install.

    ``purpose`` is what needs it: "regions='h3'", "a federation".
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SettingsError(
            f"{purpose} needs the extra {extra!r}: pip install 'epifalcon[{extra}]'"
        ) from None


def require_run_name(name: str) -> str:
    """Return ``name`` if it is a safe folder name; raise ``DataError`` otherwise."""
    if not _RUN_NAME.fullmatch(name):
        rule = "must be letters, digits, - and _, 64 at most"
        raise DataError(f"the run's name {name[:80]!r} {rule}")
    return name


def positive(**values: float) -> None:
    """Raise unless every value is a finite number greater than 0."""
    _numbers(values, lambda value: value > 0, "be a number greater than 0")


def unit_interval(**values: float) -> None:
    """Raise unless every value lies in [0, 1]."""
    _numbers(values, lambda value: 0 <= value <= 1, "lie between 0 and 1")


def at_least(low: float, **values: float) -> None:
    """Raise unless every value is a finite number of ``low`` or more."""
    _numbers(values, lambda value: value >= low, f"be a number of {low} or more")


non_negative = partial(at_least, 0)
"""Raise unless every value is a finite number, 0 or more."""


def within(low: float, high: float, **values: float) -> None:
    """Raise unless every value lies in [low, high]."""
    good = f"lie in [{low:g}, {high:g}]"
    _numbers(values, lambda value: low <= value <= high, good)


def whole(low: int, **values: int) -> None:
    """Raise unless every value is a whole number (not a bool) of at least ``low``."""
    for name, value in values.items():
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not (is_whole and value >= low):
            raise SettingsError(
                f"{name}={value} must be a whole number of {low} or more"
            )


def one_of(allowed: Collection[str], **values: str) -> None:
    """Raise unless every value is one of ``allowed``."""
    for name, value in values.items():
        if value not in allowed:
            raise SettingsError(
                f"{name}={value!r} must be one of {', '.join(sorted(allowed))}"
            )


def some(**values: tuple[Any, ...]) -> None:
    """Raise unless every value has at least one entry."""
    for name, value in values.items():
        if not value:
            raise SettingsError(f"{name} must name at least one")


def present(value: T | None, missing: str) -> T:
    """Return the value; raise ``DataError(missing)`` if it is None."""
    if value is None:
        raise DataError(missing)
    return value


def same_length(**arrays: NDArray[Any]) -> None:
    """Raise unless all arrays have the same length along their first axis."""
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"lengths must agree: {listed}")


def shaped(shape: tuple[int, ...], **arrays: Any) -> None:  # noqa: ANN401
    """Raise unless all arrays have this ``shape``."""
    for name, array in arrays.items():
        if array.shape != shape:
            raise DataError(f"{name} has shape {array.shape}, expected {shape}")


def typed(kind: type[np.generic], axes: int, /, **arrays: NDArray[Any]) -> None:
    """Raise unless all arrays have this dtype and number of axes."""
    for name, array in arrays.items():
        if array.ndim != axes or array.dtype != kind:
            raise DataError(
                f"{name} is {array.dtype} of {array.ndim} axes, "
                f"expected {np.dtype(kind)} of {axes}"
            )


def vectors(wanted: Mapping[str, type[np.generic]], /, **arrays: NDArray[Any]) -> None:
    """Check equal lengths, one axis and ``wanted`` dtypes; make arrays read-only."""
    same_length(**arrays)
    for name, array in arrays.items():
        typed(wanted[name], 1, **{name: array})
        array.setflags(write=False)


def _numbers(
    values: Mapping[str, float], is_good: Callable[[float], bool], expected: str
) -> None:
    for name, value in values.items():
        # Text and None occur if a settings class is called directly.
        number = isinstance(value, Real) and not isinstance(value, bool)
        finite = number and (isinstance(value, Integral) or math.isfinite(value))
        if not (finite and is_good(value)):
            raise SettingsError(f"{name}={value} must {expected}")


Positive = Annotated[float, positive]
NonNegative = Annotated[float, non_negative]
Share = Annotated[float, unit_interval]
Norm = Annotated[float, partial(within, 1e-6, 1e6)]
"""Bound of an L2 norm: squares and factors of values clipped to it lose no digits."""
PositiveShare = Annotated[float, unit_interval, positive]
Count = Annotated[int, partial(whole, 1)]
CountOrZero = Annotated[int, partial(whole, 0)]


class Checked:
    """Base class of settings: checks every field against its declared type.

    Supports ``Literal`` values, bool, the checks in ``Annotated``, tuples (entry by
    entry) and unions (at least one option must pass). Other types are not checked.
    """

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, hint in _hints(own).items():
            _check(hint, name, getattr(self, name))


_WORDS = {bool: "true or false", NoneType: "none", tuple: "a tuple"}


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}


def _check(hint: Any, name: str, value: Any) -> None:  # noqa: ANN401
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        _check(inner[0], name, value)
        for check in inner[1:]:
            check(**{name: value})
    elif origin is typing.Literal:
        one_of(inner, **{name: value})
    elif hint in _WORDS and not isinstance(value, hint):
        raise SettingsError(f"{name}={value!r} must be {_WORDS[hint]}")
    elif origin is tuple:
        _check(tuple, name, value)
        kinds = repeat(inner[0]) if inner[-1] is Ellipsis else inner
        for kind, item in zip(kinds, value, strict=False):
            _check(kind, name, item)
    elif origin in (typing.Union, UnionType):
        errors = []
        for option in inner:
            try:
                return _check(option, name, value)
            except SettingsError as error:
                errors.append(error)
        raise errors[0]
    return None
