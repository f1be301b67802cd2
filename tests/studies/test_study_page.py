"""The pages of studies as a reader meets them: in a browser, at a desk, on a phone."""

import html
import json

import pytest

from epifalcon.studies.study_keeping import keep_study
from epifalcon.studies.study_list import find_study
from epifalcon.studies.study_report import write_report
from epifalcon.studies.study_rows import study_result
from tests.browser import chromium, look
from tests.studies.study_results import made_up

NAMES = ("stages", "pseudo-tradeoff")
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two finished studies, and the page of both."""
    folder = tmp_path_factory.mktemp("studies")
    for name in NAMES:
        ran = made_up(find_study(name), folder / "work")
        keep_study(folder / "results" / name, ran.planned, study_result(ran))
    write_report(folder / "results", folder / "results" / "studies.html")
    return folder / "results"


def drawn(results, *names):
    return sum(len(list((results / one / "figures").glob("*.png"))) for one in names)


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", NAMES)
def test_a_browser_shows_all_of_a_study_and_asks_nobody(browser, results, name, width):
    page = results / name / "report.html"
    seen = look(browser, page, width)
    assert seen.complaints == []
    assert seen.asked == [page.resolve().as_uri()]
    assert len(seen.images) == drawn(results, name) > 0
    assert all(image["shown"] > 300 for image in seen.images)
    assert all(len(image["alt"]) > 40 for image in seen.images)
    assert seen.width <= width
    assert seen.landmarks == ["header", "nav", "main", "footer"]
    for title in ("Results", "Figures", "Differences", "What the words mean", "Cost"):
        assert title in seen.headings


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_page_of_all_studies_has_what_each_says(browser, results, width):
    page = results / "studies.html"
    seen = look(browser, page, width)
    assert seen.complaints == []
    assert seen.asked == [page.resolve().as_uri()]
    assert len(seen.images) == drawn(results, *NAMES)
    assert seen.width <= width
    text = page.read_text(encoding="utf-8")
    assert text.count('<ul class="told">') == len(NAMES)
    for name in NAMES:
        kept = json.loads((results / name / "table.json").read_text())
        for picture in kept["pictures"].values():
            assert html.escape(picture["caption"]) in text
