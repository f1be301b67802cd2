"""The report of a run as a reader meets it: in a browser, on a phone, with gaps."""

import csv
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.progress import silent
from epifalcon.studies.keeping import keep_results
from epifalcon.studies.outcomes import Listeners, run_method
from epifalcon.studies.run_folder import begin
from tests.browser import chromium, look
from tests.studies import town

LISTENERS = Listeners(progress=silent, checkpoint_seconds=10)
METHODS = ("falcon", "hgnn", "soft-dct-ratio", "hbp")
FIGURES = {
    "epidemic-curve",
    "mobility",
    "precision-recall",
    "reliability",
    "risk-map",
    "training",
}
PHONE, DESK = 390, 1280


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with noise, all of it trained, nothing reported."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    privacy = town.with_mode("paper").privacy
    begun = town.begun(folder, beside=METHODS[1:], privacy=privacy)
    begin(begun)
    return begun, [run_method(begun, method, LISTENERS) for method in METHODS]


@pytest.fixture(scope="module")
def reported(trained):
    begun, outcomes = trained
    folder = begun.folder.parent / "reported"
    shutil.copytree(begun.folder, folder)
    keep_results(replace(begun, folder=folder), outcomes)
    return folder


@pytest.fixture(scope="module")
def real(trained):
    """The same people, of whom nobody knows the truth; one method failed."""
    begun, outcomes = trained
    folder = begun.folder.parent / "real"
    shutil.copytree(begun.folder, folder)
    begun = replace(begun, folder=folder, epidemic=None)
    untold = [replace(one, metrics=None) for one in outcomes[:2]]
    keep_results(begun, untold, failed={"gcn": "ran out of <memory>"})
    return folder


def without_pictures(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    return re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("which", ["reported", "real"])
def test_a_browser_shows_all_of_it_and_asks_nobody(browser, request, which, width):
    folder = request.getfixturevalue(which)
    seen = look(browser, folder / "report.html", width)
    assert seen.complaints == []
    assert seen.asked == [(folder / "report.html").resolve().as_uri()]
    drawn = {path.stem for path in (folder / "figures").glob("*.png")}
    assert drawn == (
        FIGURES if which == "reported" else {"mobility", "risk-map", "training"}
    )
    assert len(seen.images) == len(drawn)
    for image in seen.images:
        assert image["width"] > 300
        assert image["shown"] > 300
        assert len(image["alt"]) > 20
    assert seen.width <= width
    assert seen.landmarks == ["header", "nav", "main", "footer"]
    for title in ("What was run", "Results", "Privacy card", "Settings"):
        assert title in seen.headings


def test_the_browser_notices_what_is_wrong(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<title>x</title><link rel=icon href='data:,'><img src='gone.png' alt=''>"
        "<div style='width:900px'>wide</div><script>nothing()</script>"
    )
    seen = look(browser, page, PHONE)
    assert any("nothing is not defined" in one for one in seen.complaints)
    assert len(seen.asked) == 2
    assert seen.images[0]["width"] == 0
    assert seen.width > PHONE


def test_every_figure_has_a_drawing_and_its_numbers(reported):
    figures = reported / "figures"
    assert {path.stem for path in figures.glob("*.svg")} == FIGURES
    assert {path.stem for path in figures.glob("*.csv")} == FIGURES - {"mobility"}
    for path in figures.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "<svg" in text
        assert "<dc:date>" not in text
    for path in [*figures.glob("*.csv"), *(reported / "tables").glob("*.csv")]:
        head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        assert rows, path.name
        assert {len(row) for row in rows} == {len(head)}
    tables = {path.stem for path in (reported / "tables").iterdir()}
    assert tables == {"methods", "in-plain-words", "privacy", "forecast", "city"}


def test_the_map_holds_each_hidden_person_once(reported, trained):
    begun, _ = trained
    text = (reported / "figures" / "risk-map.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert sum(int(row["people"]) for row in rows) == len(begun.epidemic.labels.hidden)
    for name in ("predicted", "true"):
        values = np.array([float(row[name]) for row in rows])
        assert ((values >= 0) & (values <= 1)).all()


def test_it_tells_what_was_run_and_how_it_stands(reported):
    page = without_pictures(reported)
    for words in (
        "A synthetic city: 80 people, 20 regions, 5 days",
        "Preset town, seed 5",
        "Of the 10 hidden people with the highest risk by Falcon (paper)",
        "chosen at random it would be",
        "One outbreak proves nothing",
        "<code>--beside oracle</code>",
        "would end the epidemic",
        "Noised channels: epsilon by unit",
        "Not protected",
        "HGNN; Soft DCT, ratio; HBP: nothing is protected",
    ):
        assert words in page, words
    assert "http" not in page


def test_without_the_truth_it_says_what_is_missing_and_claims_nothing(real):
    page = without_pictures(real)
    assert "the state of the others is not known" in page
    assert "nobody knows who else is infected" in page
    for claim in ("chosen at random", "ranks best", "hidden people are", "True"):
        assert claim not in page
    text = (real / "figures" / "risk-map.csv").read_text(encoding="utf-8")
    assert "true" not in text.splitlines()[0]
    assert "GCN has no result: ran out of &lt;memory&gt;" in page
