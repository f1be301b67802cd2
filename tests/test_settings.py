import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epifalcon.checks import positive
from epifalcon.errors import EpifalconError, SettingsError
from epifalcon.mobility.clock import Clock
from epifalcon.settings import (
    Alias,
    as_plain,
    build,
    fingerprint,
    first_difference,
    json_text,
    override,
    read_toml,
)

CASES = settings(max_examples=100, deadline=None, derandomize=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    clip: float = 0.1
    rounds: int = 3

    def __post_init__(self) -> None:
        positive(clip=self.clip)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    law: Literal["mean", "authors"] = "mean"
    share: float | None = None
    count: int | float = 1
    private: bool = False
    days: tuple[int, ...] = ()
    box: tuple[float, str] = (0.0, "km")
    inner: Inner = Inner()
    made: int = dataclasses.field(init=False, default=5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renamed(Inner):
    ALIASES: ClassVar[Mapping[str, Alias]] = {
        "cut": Alias("clip"),
        "pairs": Alias("rounds", lambda value: 2 * value),
    }


def test_an_older_key_sets_its_replacement():
    made = build(Renamed, {"cut": 0.5, "pairs": 4}, "inner")
    assert as_plain(made) == {"clip": 0.5, "rounds": 8}
    # An override follows the settings that it replaces, under either name.
    assert build(Renamed, {"clip": 0.5, "cut": 0.7}).clip == 0.7
    assert build(Renamed, {"cut": 0.5, "clip": 0.7}).clip == 0.7
    with pytest.raises(SettingsError, match=r"inner\.cut='much' must be a number"):
        build(Renamed, {"cut": "much"}, "inner")
    with pytest.raises(SettingsError, match=r"unknown setting 'cut'"):
        build(Inner, {"cut": 0.5})


def refused(values: dict, *words: str) -> None:
    with pytest.raises(SettingsError) as raised:
        build(Outer, {"name": "x", **values})
    for word in words:
        assert word in str(raised.value)


outers = st.builds(
    Outer,
    name=st.text(),
    law=st.sampled_from(["mean", "authors"]),
    share=st.none() | st.floats(allow_nan=False),
    count=st.integers() | st.floats(allow_nan=False).filter(lambda x: x % 1),
    private=st.booleans(),
    days=st.lists(st.integers()).map(tuple),
    box=st.tuples(st.floats(allow_nan=False), st.text()),
    inner=st.builds(Inner, clip=st.floats(0.1, 9), rounds=st.integers()),
)


@CASES
@given(outers)
def test_build_undoes_as_plain_also_through_json(made):
    assert build(Outer, as_plain(made)) == made
    assert build(Outer, json.loads(json.dumps(as_plain(made)))) == made


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(Outer)]), junk
    )
)
def test_any_mapping_is_built_or_refused_by_us(values):
    with contextlib.suppress(EpifalconError):
        assert isinstance(build(Outer, values), Outer)


def test_an_unknown_key_is_refused_with_the_nearest_name():
    refused({"nmae": 1}, "'nmae'", "'name'")
    refused({"inner": {"clup": 1}}, "'inner.clup'", "'inner.clip'")
    refused({"qqqqqq": 1}, "expected one of", "law", "share")
    refused({"made": 1}, "unknown")


def test_a_missing_value_is_named():
    with pytest.raises(SettingsError, match="needs name"):
        build(Outer, {})


def test_the_error_for_a_wrong_type_names_the_expected_type():
    refused({"name": 3}, "name=3", "text")
    refused({"share": "half"}, "share='half'", "a number")
    refused({"share": True}, "share=True", "a number")
    refused({"private": 1}, "private=1", "true or false")
    refused({"inner": {"rounds": 2.5}}, "inner.rounds=2.5", "a whole number")
    refused({"inner": {"rounds": True}}, "inner.rounds=True", "a whole number")
    refused({"inner": 3}, "inner=3", "table")
    refused({"days": 3}, "days=3", "list")
    refused({"days": [1, "b"]}, "days[1]='b'", "a whole number")
    refused({"box": [1]}, "box=[1]", "2 entries")
    refused({"law": "authos"}, "law='authos'", "'authors'")
    refused({"share": 10**400}, "share", "too large")


def test_numbers_are_taken_where_nothing_is_lost():
    made = build(Outer, {"name": "x", "share": 1, "inner": {"rounds": 4.0}})
    assert type(made.share) is float
    assert type(made.inner.rounds) is int


def test_the_checks_of_a_class_are_reported_with_the_full_path():
    refused({"inner": {"clip": -1}}, "inner.clip=-1.0 must be")


def test_a_fault_in_our_own_checks_is_not_hidden():
    @dataclasses.dataclass(frozen=True)
    class Broken:
        size: int = 1

        def __post_init__(self) -> None:
            raise TypeError("our own mistake")

    with pytest.raises(TypeError, match="our own mistake"):
        build(Broken, {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ('"text"', "text"),
        ("[1, 2]", [1, 2]),
        ("free words", "free words"),
        ("", ""),
        ("a=b", "a=b"),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 5000, "[" * 5000),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_override_reads_toml_or_else_text(text, value):
    got = override({}, f"inner.clip={text}")
    assert got == {"inner": {"clip": value}}
    assert type(got["inner"]["clip"]) is type(value)


def test_override_leaves_the_rest_and_the_original():
    values = {"a": {"b": 1, "c": 2}, "d": 3}
    assert override(values, "a.b=9") == {"a": {"b": 9, "c": 2}, "d": 3}
    assert values == {"a": {"b": 1, "c": 2}, "d": 3}
    assert override(values, "d.e=1") == {"a": {"b": 1, "c": 2}, "d": {"e": 1}}


@pytest.mark.parametrize("wrong", ["a", "=3", "a..b=3", ".a=3", "a.=3", ""])
def test_an_assignment_without_a_key_or_sign_is_refused(wrong):
    with pytest.raises(SettingsError, match=r"section\.key=value"):
        override({}, wrong)


def test_an_unquoted_date_is_text_and_the_word_none_is_none():
    values = override({}, "start=2020-03-01")
    assert build(Clock, values).start == "2020-03-01"
    assert build(Clock, override(values, "start=none")).start is None


def test_toml_files_that_cannot_be_read_are_refused_by_name(tmp_path):
    with pytest.raises(SettingsError, match=r"gone\.toml"):
        read_toml(tmp_path / "gone.toml")
    with pytest.raises(SettingsError, match="cannot be read"):
        read_toml(tmp_path)
    for name, content, expected in [
        ("bytes.toml", b"\xff\xfe", "UTF-8"),
        ("broken.toml", b"a = [", "not valid TOML"),
        ("deep.toml", b"a = " + b"[" * 50_000, "not valid TOML"),
        ("long.toml", b"a = " + b"9" * 5_000, "not valid TOML"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=f"{name}.*{expected}"):
            read_toml(path)


@CASES
@given(st.dictionaries(st.text(), junk, max_size=4), st.randoms())
def test_a_fingerprint_does_not_depend_on_the_order_of_keys(values, random):
    keys = list(values)
    random.shuffle(keys)
    assert fingerprint({key: values[key] for key in keys}) == fingerprint(values)


def test_fingerprints_distinguish_content_but_not_equal_numbers():
    assert fingerprint({"a": 2}) == fingerprint({"a": 2.0})
    assert fingerprint({"a": (1, 2)}) == fingerprint({"a": [1, 2]})
    assert fingerprint({"a": np.int64(2)}) == fingerprint({"a": 2})
    prints = [{"a": 1}, {"a": 2}, {"b": 1}, {"a": "1"}, {"a": 1.5}, {"a": True}, {}]
    assert len({fingerprint(values) for values in prints}) == len(prints)


def test_json_has_null_for_what_is_not_finite():
    values = {"a": float("nan"), "b": [float("inf"), 1.5], "c": np.int64(3)}
    assert json.loads(json_text(values)) == {"a": None, "b": [None, 1.5], "c": 3}
    with pytest.raises(TypeError, match="JSON"):
        json_text({"a": object()})


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"b": {"c": [1, 2]}, "a": 1}, None),
        ({"a": 1}, {"a": 1.0}, None),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 3}}}, ("a.b.c", 1, 3)),
        ({"a": {"b": 1}}, {"a": 5}, ("a", {"b": 1}, 5)),
        ({}, {"a": {"b": 1}}, ("a", None, {"b": 1})),
        ({"a": 1, "b": 2}, {"b": 3, "a": 0}, ("a", 1, 0)),
        ({"a": None}, {}, None),
    ],
)
def test_the_first_difference_is_found(one, other, found):
    assert first_difference(one, other) == found
