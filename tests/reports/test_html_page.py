"""Pages, tables and number formats."""

import math
from dataclasses import replace

import pytest

from epifalcon.reports import formats
from epifalcon.reports.html_page import Link, Page, Picture, Section, Text
from epifalcon.reports.tables import Table


@pytest.fixture
def picture(tmp_path):
    (tmp_path / "p.png").write_bytes(b"png")
    return tmp_path / "p.png"


def test_text_cannot_become_markup(picture):
    evil = "<script>alert('x')</script>\""
    parts = [
        Text([evil, f"`{evil}`"]),
        Text([evil], "findings"),
        Text([evil], "note"),
        Table(evil, [evil], [[evil]]),
        Picture(picture, evil),
        Picture(picture, evil, wide=True),
        Link(evil, evil),
    ]
    page = Page(
        title=evil,
        lead=evil,
        headline=[(evil, evil)],
        sections=[Section(evil, parts, evil)],
        settings_toml=evil,
        made_by=evil,
        closing=evil,
        marker=evil,
    ).to_html()
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") > 20
    assert 'alt="&lt;script' in page


def test_a_page_is_as_stored(picture, stored_page):
    table = Table("T", ["a", "why", "b"], [["x", "noise", "1.5 ± 0.2"], ["y", "", "-"]])
    page = Page(
        title="Title",
        lead="Lead.",
        headline=[("42", "people")],
        sections=[
            Section("Words", [Text(["Call `epifalcon run`."]), table], "Section lead."),
            Section("Pictures", [Picture(picture, "caption", wide=True)] * 2),
            Section("Lists", [Text(["one", "two"], "findings"), Text(["!"], "note")]),
            Section("Empty", [Table("none", ["a"], [])]),
            Section("T", [replace(table, caption="")]),
        ],
        settings_toml="x = 1",
        made_by="command",
        closing="The end.",
    ).to_html()
    assert "data:image/png;base64,cG5n" in page
    assert "Empty" not in page
    stored_page(page, "page")


def test_a_table_as_text():
    table = Table("T", ["a", "b"], [["x|y\nz", "1,5"]])
    assert table.to_markdown() == "## T\n\n| a | b |\n| --- | --- |\n| x\\|y z | 1,5 |"


def test_numbers_as_they_are_shown():
    assert [formats.number(one) for one in (0.12345, None, math.nan)] == [
        *("0.123", "-", "-")
    ]
    assert formats.number(1234.5, 1) == "1,234.5"
    epsilons = (None, 0.123456, 999.96, 1000, 12345.6, math.inf)
    assert [formats.epsilon(one) for one in epsilons] == [
        *("no bound", "0.1235", "1000", "1,000", "12,346", "no bound")
    ]
    assert [formats.signed(one) for one in (0.0, 0.00049, -0.0001, None)] == [
        *("+0.000", "+0.0005", "-0.0001", "-")
    ]
    interval = {"mean": 0.5, "low": 0.4, "high": 0.6}
    assert formats.mean_and_half_width(interval) == "0.500 ± 0.100"
    assert formats.mean_and_half_width({**interval, "high": None}) == "0.500"
