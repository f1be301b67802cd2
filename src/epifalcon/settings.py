"""Convert plain mappings (TOML, JSON, command line) to frozen dataclasses and back.

The error for an unknown key names the nearest valid key, and that for a value of the
wrong type the expected type. Failed checks of a class are reported with the key's
full path. Older names of keys are listed in the class attribute ``ALIASES``.
"""

import dataclasses
import datetime
import difflib
import hashlib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from epifalcon.errors import SettingsError

if TYPE_CHECKING:
    # Only for annotations: types.py imports NumPy, which would delay --help.
    from epifalcon.types import Plain

T = TypeVar("T")
_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")
"""``.1`` and ``1.``, which are not valid TOML but common input."""


@dataclasses.dataclass(frozen=True)
class Alias:
    """Replacement of an older key, with the conversion of its value."""

    name: str
    convert: Callable[[Any], Any] = lambda value: value


def build(cls: type[T], values: "Plain", where: str = "") -> T:
    """Build the dataclass ``cls`` from a mapping at the dotted path ``where``.

    If the mapping holds an older key and its replacement, the later entry is used.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    aliases: Mapping[str, Alias] = getattr(cls, "ALIASES", {})
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{where}.{key}" if where else key
        alias = aliases.get(key, Alias(key))
        if alias.name not in fields:
            raise SettingsError(unknown_name("setting", path, fields, where))
        arguments[alias.name] = convert(hints[alias.name], alias.convert(value), path)
    none = dataclasses.MISSING
    needed = (f.name for f in fields.values() if f.default is f.default_factory is none)
    if missing := [name for name in needed if name not in arguments]:
        section = f"[{where}] " if where else ""
        raise SettingsError(f"{section}needs {', '.join(missing)}")
    try:
        return cls(**arguments)
    except SettingsError as error:
        prefix = f"{where}." if where else ""
        raise SettingsError(f"{prefix}{error}") from None


def unknown_name(
    what: str, name: str, known: typing.Iterable[str], where: str = ""
) -> str:
    """Return the message for an unknown name, with the nearest known one."""
    known = sorted(known)
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], known, n=1, cutoff=0.5)
    prefix = f"{where}." if where else ""
    if near:
        return f"unknown {what} {name!r}: did you mean {prefix + near[0]!r}?"
    # Quotes separate labels that contain a comma.
    listed = [repr(label) if "," in label else label for label in known]
    return f"unknown {what} {name!r}: expected one of {', '.join(listed)}"


def as_plain(settings: Any) -> dict[str, Any]:  # noqa: ANN401
    """Convert settings to a mapping for JSON and TOML; the inverse of ``build``."""
    return {
        field.name: plain(getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.init
    }


def override(values: "Plain", assignment: str) -> dict[str, Any]:
    """Copy nested ``values`` with one ``key.path=value`` set.

    The value is read as TOML (``3``, ``.5``, ``true``, ``"text"``, ``[1, 2]``);
    anything else is taken as text, so quotes may be omitted.
    """
    key, equals, text = assignment.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise SettingsError(f"--set {assignment!r} must look like section.key=value")
    return assigned(values, path, _toml_value(text.strip()))


def assigned(values: "Plain", path: Sequence[str], value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Copy nested ``values`` with the entry at ``path`` set to ``value``."""
    name, *inner = path
    if inner:
        below = values.get(name)
        value = assigned(below if isinstance(below, Mapping) else {}, inner, value)
    return {**values, name: value}


def first_difference(
    one: "Plain", other: "Plain", where: str = ""
) -> tuple[str, Any, Any] | None:
    """Return the first key path at which two settings differ, with both values."""
    for key in {**one, **other}:
        path = f"{where}.{key}" if where else key
        mine, theirs = one.get(key), other.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            if (difference := first_difference(mine, theirs, path)) is not None:
                return difference
        elif mine != theirs:
            return path, mine, theirs
    return None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise ``SettingsError`` with the file and position."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: expected UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def json_text(values: "Plain", indent: int | None = None) -> str:
    """Convert the mapping to JSON; NaN and infinite numbers become null."""
    return json.dumps(
        _leaves(values, _null_unless_finite),
        indent=indent,
        ensure_ascii=False,
        allow_nan=False,
        default=_native,
    )


def fingerprint(values: "Plain") -> str:
    """Compute the SHA-256 of the mapping, independent of key order."""
    text = json.dumps(
        _leaves(values, _one_form),
        sort_keys=True,
        separators=(",", ":"),
        default=_native,
    )
    return hashlib.sha256(text.encode()).hexdigest()


def _toml_value(text: str) -> Any:  # noqa: ANN401
    if _SHORT_NUMBER.fullmatch(text):
        return float(text)
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        # ValueError: a number with thousands of digits does not raise TOMLDecodeError.
        return text
    return read["value"] if len(read) == 1 else text


def plain(value: Any) -> Any:  # noqa: ANN401
    """Convert dataclasses and tuples inside a value to mappings and lists."""
    if dataclasses.is_dataclass(value):
        return as_plain(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def convert(hint: Any, value: Any, path: str) -> Any:  # noqa: ANN401
    """Convert a plain value to the type ``hint``, or raise ``SettingsError``."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(typing.get_args(hint), value, path)
    if origin is typing.Literal:
        choices = typing.get_args(hint)
        # True == 1, so equality alone would let a bool pass for a number.
        if any(type(value) is type(choice) and value == choice for choice in choices):
            return value
        listed = ", ".join(repr(choice) for choice in choices)
        near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise SettingsError(f"{path}={value!r} must be one of {listed}{hint}")
    if origin is tuple:
        return _convert_tuple(hint, value, path)
    if origin is Mapping or dataclasses.is_dataclass(hint):
        if origin is None and isinstance(value, hint):
            return value
        if not isinstance(value, Mapping):
            raise SettingsError(f"{path}={value!r} must be a table of settings")
        return dict(value) if origin is Mapping else build(hint, value, path)
    return _convert_scalar(hint, value, path)


def _convert_union(options: tuple[Any, ...], value: Any, path: str) -> Any:  # noqa: ANN401
    # TOML and the command line have no null, so "none" is accepted instead.
    if value in (None, "none") and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return convert(option, value, path)
        except SettingsError as error:
            errors.append(str(error))
    first, *others = errors
    expected = [other.partition(" must be ")[2] for other in others]
    raise SettingsError(" or ".join([first, *filter(None, expected)]))


def _convert_tuple(hint: Any, value: Any, path: str) -> tuple[Any, ...]:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        raise SettingsError(f"{path}={value!r} must be a list")
    inner = typing.get_args(hint)
    if inner[-1] is Ellipsis:
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        raise SettingsError(f"{path}={value!r} must have {len(inner)} entries")
    return tuple(
        convert(kind, item, f"{path}[{index}]")
        for index, (kind, item) in enumerate(zip(inner, value, strict=True))
    )


def _convert_scalar(hint: Any, value: Any, path: str) -> Any:  # noqa: ANN401
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise SettingsError(f"{path} is too large") from None
    if hint is str and isinstance(value, datetime.date | datetime.time):
        # TOML reads an unquoted 2020-03-01 as a date.
        return value.isoformat()
    if isinstance(value, bool) and hint is not bool:
        raise SettingsError(f"{path}={value} must be {_KINDS.get(hint, hint)}")
    if isinstance(value, hint):
        return value
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    raise SettingsError(f"{path}={value!r} must be {_KINDS.get(hint, hint)}")


def _native(value: object) -> Any:  # noqa: ANN401
    """Convert a NumPy scalar to a Python scalar."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{value!r} cannot be written as JSON")
    return item()


def _leaves(value: Any, change: Callable[[Any], Any]) -> Any:  # noqa: ANN401
    """Apply ``change`` to every leaf of nested mappings and lists."""
    if isinstance(value, Mapping):
        return {key: _leaves(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_leaves(inner, change) for inner in value]
    return change(value)


def _null_unless_finite(value: Any) -> Any:  # noqa: ANN401
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _one_form(value: Any) -> Any:  # noqa: ANN401
    """Convert integral floats to int, so that 2 and 2.0 have one fingerprint."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
