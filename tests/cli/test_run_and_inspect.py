"""The folder of a run: what it holds, what ``inspect`` says, and runs made from it."""

import json

import pytest

from tests.cli.conftest import QUICK, TINY
from tests.cli.runs import run_quietly, with_set


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    words = ("--out", out, "--seed", 3, *TINY, *with_set(QUICK), "--quiet")
    run_quietly("run", *words)
    return out


def test_inspect_measures_and_draws_a_city(epifalcon, made, tiny, tmp_path):
    figures = epifalcon("inspect", made, "--out", tmp_path / "p", "--json").json
    assert (figures["kind"], figures["people"]) == ("run", 120)
    assert len(figures["statistics"]) >= 10
    for item in figures["statistics"]:
        if item["value"] is not None:
            assert item["holds"] == (item["low"] <= item["value"] <= item["high"])
    assert figures["picture"] == str(tmp_path / "p" / "mobility.png")
    assert (tmp_path / "p" / "mobility.png").is_file()
    found = epifalcon("inspect", "--preset", "hamlet", "--json", *tiny).json
    assert found["people"] == 120


def test_presets_are_listed_and_shown(epifalcon, tmp_path):
    names = {"hamlet", "basic-sars", "basic-omicron", "larger-sars", "larger-omicron"}
    assert set(epifalcon("presets", "--json").json) == names
    text = epifalcon("presets", "hamlet", "--set", "city.people=77").out
    (tmp_path / "mine.toml").write_text(text)
    shown = epifalcon("presets", tmp_path / "mine.toml", "--json").json
    assert shown["city"]["people"] == 77


@pytest.mark.usefixtures("no_pictures")
def test_a_run_on_a_city_that_was_there_keeps_what_made_the_city(
    epifalcon, made, tmp_path
):
    again = tmp_path / "again"
    words = ("--city", made, "--set", "pathogen=omicron", "--out", again)
    assert epifalcon("run", *words, "--method", "soft-dct-ratio", "--seed", 9).code == 0
    old, new = (
        json.loads((folder / "city" / "manifest.json").read_text())
        for folder in (made, again)
    )
    assert new["settings"] == old["settings"]
    assert new["seed"] == old["seed"] == 3
    run = json.loads((again / "manifest.json").read_text())
    assert run["settings"]["city"]["read_from"] == str(made)
    assert run["settings"]["city"]["settings"] == old["settings"]
    assert run["settings"]["pathogen"]["name"] == "omicron"
    assert f"--city {made}" in (again / "report.html").read_text()
