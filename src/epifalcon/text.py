"""Text from files and users, made safe for terminals, messages and spreadsheets."""

import re

_CONTROL = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and line end; marks of direction; lone surrogates."""
_LONG = re.compile(r"(?<!\w)(?:'[^'\n]{200,}'|\"[^\"\n]{200,}\")(?!\w)|\S{500,}")
_LONGEST_MESSAGE = 1000
FORMULA = r"^('*[=+\-@\t\r\n＝＋－＠])"
"""Start of a cell that a spreadsheet runs; apostrophes before it were added."""
_NUMBER = re.compile(r"[-+]?[\d.,]*(e[-+]?\d+)?%?( ± [\d.,]+)?")


def printable(text: str) -> str:
    r"""Escape characters that would control a terminal, as in JSON (``\u001b``)."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(message: str) -> str:
    """Shorten quoted values, words and messages that are too long to read."""
    message = _LONG.sub(lambda found: _without_middle(found[0], 100), message)
    return _without_middle(message, _LONGEST_MESSAGE)


def spreadsheet_cell(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would run as a formula."""
    if isinstance(value, str) and re.match(FORMULA, value):
        return value if _NUMBER.fullmatch(value) else f"'{value}"
    return value


def _without_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}...{text[-half:]} ({len(text):,} characters)"
