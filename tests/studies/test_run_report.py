"""The report of a run as a reader meets it: in a browser, on a phone, with gaps."""

import csv
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from epifalcon.evaluation.metrics import evaluate
from epifalcon.progress import silent
from epifalcon.studies import run_report
from epifalcon.studies.keeping import keep_results
from epifalcon.studies.outcomes import Listeners, Outcome, run_method
from epifalcon.studies.run_folder import begin
from epifalcon.studies.run_report import RunResults, run_page
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
    assert {path.stem for path in figures.glob("*.csv")} == FIGURES
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


def test_the_correlation_of_the_maps_can_be_computed_again_from_the_file(reported):
    text = (reported / "figures" / "risk-map.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    names = ("people", "predicted", "true", "predicted_mean", "true_mean")
    people, *drawn, told, true = (
        np.array([float(row[name]) for row in rows]) for name in names
    )
    weighted = np.cov(drawn, aweights=people)
    shrunk = weighted[0, 1] / np.sqrt(weighted[0, 0] * weighted[1, 1])
    plain = np.corrcoef(told, true)[0, 1]
    page = without_pictures(reported)
    assert f"{shrunk:.2f} as drawn, each region weighted by its people" in page
    assert f"{plain:.2f} of the means before they are drawn" in page
    mean = np.average(told, weights=people)
    np.testing.assert_allclose(drawn[0], (people * told + 20 * mean) / (people + 20))


def test_it_says_how_few_validation_people_there_are_and_how_sure_that_is(
    reported, real, trained
):
    begun, outcomes = trained
    for one in outcomes[:2]:
        positive = begun.known.status[one.masked] == 1
        told = (
            f"validation AUC {one.trained.validation_auc:.3f} on {len(positive)} "
            f"people, {positive.sum()} of them positive"
        )
        assert told in without_pictures(reported)
        assert told in without_pictures(real)
    assert "The AUC on the 48 hidden people" in without_pictures(reported)
    assert "The AUC on the" not in without_pictures(real)


def test_first_cases_and_passed_on_ones_add_up(reported, trained):
    outbreak = trained[0].epidemic.outbreak
    ever, first = outbreak.ever_infected().sum(), outbreak.seeds.sum()
    assert ever - first == outbreak.new_cases_by_day().sum()
    page = without_pictures(reported)
    assert f"the {first} with whom it began and {ever - first} by others" in page
    assert f"{ever} people ({outbreak.infected_share:.1%}) were infected" in page
    assert f"the {first} people with whom the outbreak began" in page


def given(begun, *methods):
    metrics = evaluate(np.linspace(0, 1, 80), np.arange(80) % 2 == 0, 0.8)
    risk = np.linspace(0, 1, 80)
    outcomes = [Outcome(method, risk, metrics, 0.1) for method in methods]
    results = RunResults(
        begun=begun, outcomes=outcomes, judged=[], pictures={}, city_tables=[],
        summary={"tested": 32, "metrics": None},
    )  # fmt: skip
    return run_page(results).to_html()


def test_what_methods_are_given_is_told_by_name(trained):
    begun, _ = trained
    alone = given(begun, "hgnn", "dct")
    assert "where people have been, and from nothing else." in alone
    page = given(begun, "hgnn", "hbp", "falcon-field", "oracle")
    assert "nothing else, " not in page
    assert "HBP and Falcon Field the disease&#x27;s rates" in page
    assert "Oracle (no method) something of the truth, as a ceiling" in page
    assert "The rest is given nothing else." in page
    assert "The rest" not in given(begun, "hbp", "oracle")
    cases = town.with_cases("all")
    told = run_report._given(
        [Outcome("falcon", np.zeros(80), None, 0.1, settings=cases)]
    )
    assert "everybody's cases, which hold the answers" in told


def test_an_explanation_is_asked_of_the_field_by_name_if_the_run_is_another_s(trained):
    begun = replace(trained[0], epidemic=None)
    ours, beside = given(begun, "falcon-field"), given(begun, "hgnn", "falcon-field")
    assert "PERSON</code>" in ours
    assert "PERSON --method falcon-field</code>" in beside
    assert "One risk taken apart" not in given(begun, "hgnn")


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
