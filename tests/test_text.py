import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epifalcon.settings import json_text
from epifalcon.text import printable, shortened, spreadsheet_cell

HOSTILE = "\x1b[2J\x9b31m\r\x7f\u202e\u2066\u2028\ud800\x00"


def test_nothing_controls_a_terminal():
    shown = printable(f"a\tb\nc {HOSTILE} ünï 北京")
    assert shown.startswith("a\tb\nc \\u001b[2J\\u009b31m\\u000d\\u007f\\u202e\\u2066")
    assert shown.endswith("\\u2028\\ud800\\u0000 ünï 北京")
    assert all(char.isprintable() for char in shown.replace("\t", "").replace("\n", ""))


@given(st.text(st.characters(codec=None)))
def test_json_that_can_be_printed_has_the_same_content(text):
    assert json.loads(printable(json_text({"name": text}))) == {"name": text}


@pytest.mark.parametrize("value", ["x" * 5000, "x y " * 1250, "it's " * 1000])
def test_a_long_value_leaves_the_rest_of_a_message(value):
    message = f"the traces' person={value!r} is not one of 'known' or 'others'"
    short = shortened(message)
    assert len(short) < 250
    assert short.startswith("the traces' person=")
    assert short.endswith(" is not one of 'known' or 'others'")
    assert "characters)" in short


def test_short_values_stay_and_long_messages_are_cut():
    message = f"{'/folder' * 40}: holds 'a b', {'expected one of these' * 20}"
    assert shortened(message) == message
    assert len(shortened("9, " * 2500)) < 1100


@pytest.mark.parametrize("start", "=+-@\t\r\n＝＋－＠")
def test_a_formula_follows_an_apostrophe(start):
    formula = f"{start}cmd|' /C calc'!A0"
    assert spreadsheet_cell(formula) == f"'{formula}"
    assert spreadsheet_cell(f"'{formula}") == f"''{formula}"
    assert spreadsheet_cell("-2+3+cmd|' /C calc'!A0") == "'-2+3+cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "a=b",
        "'quoted'",
        "-",
        "-5",
        "+0.012",
        "-1,234.5",
        "-1e-05",
        "-0.1 ± 0.2",
        -5,
    ],
)
def test_names_and_numbers_stay(cell):
    assert spreadsheet_cell(cell) == cell
