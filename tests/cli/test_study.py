"""``epifalcon study``: from the list to the page, on a town of 120 people."""

import json

import pytest

from epifalcon.experiments.experiment import Experiment
from epifalcon.studies import catalogue
from tests.cli.conftest import QUICK
from tests.studies.study_results import tiny_study

pytestmark = pytest.mark.usefixtures("no_pictures")
METHODS = ("soft-dct-ratio", "dct")


@pytest.fixture
def town(tmp_path, monkeypatch):
    """A preset of 120 people, and a study of it on the list."""
    words = ["city.people=120", "city.regions=30", "city.days=5"]
    experiment = Experiment.load("hamlet", [*words, "outbreak.seed_count=12", *QUICK])
    preset = tmp_path / "town.toml"
    preset.write_text(experiment.to_toml())
    study = tiny_study(str(preset), METHODS, metrics=("auc", "dep"))
    known = {**catalogue._STUDIES, "tiny": study}
    monkeypatch.setattr(catalogue, "_STUDIES", known)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def study(epifalcon, town):  # noqa: ARG001
    def call(*words):
        said = epifalcon("study", *words)
        assert "Traceback" not in said.err
        return said

    return call


SMALL = ("run", "tiny", "--scale", "hamlet", "--seeds", 2, "--jobs", 2)


def test_a_study_runs_resumes_and_is_reported(study, town):
    said = study(*SMALL, "--methods", "dct", "--json")
    assert {row["method"] for row in said.json["rows"]} == {"dct"}
    part = town / "runs" / "studies" / "tiny-hamlet-part"
    assert said.json["out"] == "runs/studies/tiny-hamlet-part"
    assert (part / "table.csv").is_file()
    measured = sorted(town.rglob("measured/manifest.json"))
    times = {path: path.stat().st_mtime_ns for path in measured}
    assert len(times) == 4

    said = study(*SMALL, "--json")
    rows = said.json["rows"]
    assert [(row["cell"], row["method"]) for row in rows] == [
        ("whole", "soft-dct-ratio"), ("whole", "dct"),
        ("half", "soft-dct-ratio"), ("half", "dct"),
    ]  # fmt: skip
    assert all(row["seeds"] == [0, 1] for row in rows)
    # What was there was only read.
    assert {path: path.stat().st_mtime_ns for path in measured} == times
    out = town / "runs" / "studies" / "tiny-hamlet"
    assert json.loads((out / "table.json").read_text())["rows"] == rows
    assert (
        (out / "command.txt")
        .read_text()
        .startswith("epifalcon study run tiny --scale hamlet --seeds 2\n")
    )

    said = study("report", "--results", "runs/studies", "--json")
    assert [one["study"] for one in said.json["studies"]] == ["tiny", "tiny"]
    assert (town / "runs" / "studies" / "studies.html").is_file()


def test_tables_without_a_figure_do_not_replace_others(study, town):
    words = ("run", "tiny", "--scale", "hamlet", "--seeds", 1, "--methods", "dct")
    assert study(*words).code == 0
    table = town / "runs/studies/tiny-hamlet-part/table.json"
    before = table.read_bytes()
    for settings in town.glob("runs/studies/*/settings.toml"):
        settings.write_text("damaged")
    said = study(*words, "--quiet")
    said.require_error(1, "runs of 2 rows failed")
    assert "no method has a result" in said.err
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "overal"), 2, "unknown study 'overal': did you mean 'overall'?"),
        (("run", "tiny", "--scale", "town"), 2, "unknown scale 'town'"),
        (("run", "tiny", "--methods", ","), 2, "--methods names no method"),
        (("run", "tiny", "--methods", "hbp"), 2, "study tiny has no method hbp"),
        (("run", "tiny", "--out", "taken"), 6, "taken: exists and was not made by"),
        (("report",), 3, "results: holds no finished study"),
    ],
)
def test_mistakes_end_in_one_line(study, town, words, code, message):
    (town / "taken").mkdir()
    (town / "taken" / "mine").write_text("x")
    study(*words).require_error(code, f"epifalcon: {message}", alone=True)
    assert not (town / "runs").exists()


def test_an_interrupted_study_tells_how_to_go_on(study, monkeypatch):
    def tired(*_words, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("epifalcon.studies.scheduler.run_comparisons", tired)
    said = study(*SMALL, "--work", "my work")
    assert said.code == 130
    assert said.err == (
        "epifalcon: interrupted; resume with: epifalcon study run tiny --scale hamlet "
        "--seeds 2 --work 'my work'\n"
    )
