"""``epifalcon run`` as a user meets it: figures, exit codes, what is left behind."""

import html
import json
import re
import shlex
import shutil
import stat
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from epifalcon import store
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import DataError
from epifalcon.experiments.experiment import Experiment
from epifalcon.experiments.run_folder import FinishedRun, data_folder, finish, open_run
from epifalcon.privacy.ledger import Budget
from tests.cli.conftest import QUICK
from tests.cli.runs import content, names, strict, timeless, with_set, write_own_data
from tests.studies import town

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.mark.parametrize("mode", ["off", "paper", "local"])
def test_the_figures_are_those_that_are_relied_on(run_town, tmp_path, mode):
    figures = run_town("--json", "--mode", mode, "--seed", 7).json
    assert (figures["mode"], figures["seed"], figures["method"]) == (mode, 7, "falcon")
    assert figures["selected_on"] == "validation"
    assert figures["macro_cases"] == ("none" if mode == "local" else "reported")
    epsilon = figures["epsilon"].values()
    if mode == "off":
        assert set(epsilon) == {None}
        assert figures["metrics"]
    else:
        assert figures.keys() & {"metrics", "tested", "statistics"} == set()
        visit, day, person = epsilon
        assert 0 < visit < day < person
        assert mode == "paper" or person <= 8 + 1e-6
    stored = strict((tmp_path / "run" / "summary.json").read_text())
    assert figures == {**stored, "out": str(tmp_path / "run")}


def test_another_method_may_be_the_runs_own_and_a_mode_without_effect_is_noted(
    run_town, tmp_path
):
    words = ("--method", "soft-dct-ratio", "--set", "privacy.mode=local")
    said = run_town("--json", *words)
    assert said.code == 0
    assert said.err == (
        "privacy.mode=local applies only to falcon: soft-dct-ratio uses traces and "
        "tests without protection\n"
    )
    figures = said.json
    assert figures["method"] == "soft-dct-ratio"
    assert set(figures["epsilon"].values()) == {None}
    assert names(tmp_path / "run" / "methods") == ["soft-dct-ratio"]


def test_the_layer_authors_is_marked_wherever_it_is_used(run_town, tmp_path):
    marked = run_town("--preset", "hamlet+authors", "--beside", "hgnn", "--json").json
    assert (marked["selected_on"], marked["macro_cases"]) == ("test", "all")
    assert set(marked["epsilon"].values()) == {None}
    for folder in (tmp_path / "run", tmp_path / "run" / "private"):
        report = (folder / "report.html").read_text(encoding="utf-8")
        assert "Falcon, paper (ALL CASES, selected on test people)" in report
        assert "no epsilon exists" in report
    assert "HGNN (selected on test people)" in report
    assert "whose cases were used" in report


def test_nobody_hidden_is_still_a_run(run_town):
    figures = run_town("--json", "--set", "labels.label_share=1").json
    assert figures["metrics"] is None
    assert figures["prevalence"] is None
    assert figures["validation_auc"] is not None


REFUSED = [
    (("--set", "model.window_slots=7"), 2, "must divide the trace of 60 slots"),
    (("--set", "labels.label_share=0.02"), 3, "tested positive: at least 2"),
    (("--mode", "secret"), 2, "privacy.mode='secret'"),
    (
        ("--mode", "local", "--method", "hbp"),
        2,
        "--mode local is a mode of falcon-field and falcon, not of hbp",
    ),
    (("--mode", "sums"), 2, "--mode sums is a mode of falcon-field, not of falcon"),
    (("--resume", "--overwrite"), 2, "choose one"),
    (("--checkpoint-seconds", "nan"), 2, "--checkpoint-seconds"),
    (("--known", "somewhere"), 2, "--known needs --city"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_what_cannot_be_run_is_refused_and_leaves_nothing(
    run_town, tmp_path, words, code, message
):
    run_town(*words, out="deep/run").require_error(code, message, alone=True)
    assert names(tmp_path) == []


def test_a_budget_too_small_ends_with_4(run_town, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "epifalcon.federation.privacy_plan._budget", lambda _: Budget(person=0.5)
    )
    for said in (run_town("--mode", "local"), run_town("--resume")):
        said.require_error(4, "the budget is 0.5: nothing was released")
    place = tmp_path / "run" / "private" / "methods" / "falcon"
    assert (place / "ledger.jsonl").exists()


def test_tests_of_real_people(run_town, tmp_path):
    assert run_town("--method", "soft-dct-ratio", "--seed", 3, out="first").code == 0
    words = ("--city", tmp_path / "first", "--known", tmp_path / "first")
    words = (*words, "--method", "falcon")
    figures = strict(run_town(*words, *with_set(QUICK), "--json", "--seed", 5).out)
    assert figures["metrics"] is None
    assert figures["prevalence"] is None
    assert "outbreak" not in figures
    assert figures["validation_auc"] is not None
    assert not (tmp_path / "run" / "hidden").exists()
    assert not (tmp_path / "run" / "outbreak").exists()
    assert timeless(run_town(*words, "--resume", "--json").json) == timeless(figures)
    for setting in ("region.macro_cases=all", "stopping.selected_on=test"):
        leaking = run_town(*words, "--set", setting, out="leak")
        leaking.require_error(2, "needs a simulated outbreak")
        assert not (tmp_path / "leak").exists()


@pytest.fixture
def own_data(epifalcon, tmp_path):
    """Imported stays and tests of 60 people, as a user would bring them."""
    people, places = ([f"{kind}{n}" for n in range(60)] for kind in ("p", "place "))
    said = epifalcon(*write_own_data(tmp_path, "own", people, places[:12]))
    assert said.code == 0, said.err
    return tmp_path / "own"


DISEASE = ("--pathogen", "omicron")
FALCON = ("--set", "model.rounds=2", "--set", "pseudo.domains.least_regions=5")
SETTINGS_FILE = 'extends = "hamlet"\nmethod = "soft-dct-ratio"\n'


@pytest.mark.parametrize(
    ("words", "method"),
    [
        (("--known", "OWN", *DISEASE), "falcon-field"),
        (("--preset", "hamlet", "--known", "OWN"), "falcon-field"),
        (("--preset", "hamlet"), "falcon-field"),
        (("--known", "OWN", *DISEASE, "--method", "soft-dct-ratio"), "soft-dct-ratio"),
        (
            ("--set", "pathogen=omicron", "--set", "method=soft-dct-ratio"),
            "soft-dct-ratio",
        ),
        (("--known", "OWN", "--preset", "FILE"), "soft-dct-ratio"),
    ],
)
def test_own_data_has_falcon_field_as_default_method(
    epifalcon, own_data, tmp_path, words, method
):
    (tmp_path / "mine.toml").write_text(SETTINGS_FILE)
    paths = {"OWN": own_data, "FILE": tmp_path / "mine.toml"}
    words = [paths.get(word, word) for word in words]
    out = tmp_path / "run"
    found = epifalcon("run", "--city", own_data, *words, "--out", out, "--json").json
    assert found["method"] == method
    # Resumed with the same options, or none, it is the same run.
    for again in ((), words, ("--city", own_data)):
        found = epifalcon("run", "--resume", *again, "--out", out, "--json").json
        assert found["method"] == method
    other = tmp_path / "other"
    shutil.copytree(own_data, other)
    known = TestResults.load(other / "known")
    shutil.rmtree(other / "known")
    changed = town.flipped(known, known.person[:1])
    changed.save(other / "known", store.Origin.now({}, None))
    said = epifalcon("run", "--resume", "--city", other, "--out", out)
    said.require_error(2, "was created with another --city")


def test_the_disease_of_own_data_must_be_named(epifalcon, own_data, tmp_path):
    words = ("run", "--city", own_data, "--out")
    for more in ((), ("--set", "pathogen.beta=0.3"), ("--method", "falcon")):
        said = epifalcon(*words, tmp_path / "none", *more)
        said.require_error(2, "the pathogen of these people is missing", alone=True)
        assert "sars-cov-2, omicron, FILE.toml" in said.err
        assert "unknown (rates are estimated)" in said.err
    said = epifalcon(*words, tmp_path / "none", "--pathogen", "omikron")
    said.require_error(2, "did you mean 'omicron'", alone=True)
    (tmp_path / "flu.toml").write_text("beta = 0.3\nalpha = 0.5\n")
    said = epifalcon(*words, tmp_path / "none", "--pathogen", tmp_path / "flu.toml")
    said.require_error(2, "flu.toml: needs mu", alone=True)
    (tmp_path / "flu.toml").write_text("beta = 0.3\nalpha = 0.5\nmu = 0.2\n")
    said = epifalcon(*words, tmp_path / "flu", "--pathogen", tmp_path / "flu.toml")
    assert "Disease: flu. Estimated, with 90 % intervals: R0 " in said.out
    assert "to being infectious 2 (assumed), days infectious 5 (assumed)" in said.out
    summary = json.loads((tmp_path / "flu" / "summary.json").read_text())
    assert summary["pathogen"] == "flu"
    assert "Disease: flu. Estimated" in (tmp_path / "flu" / "report.html").read_text()


def test_an_unknown_disease_is_only_for_methods_that_estimate_rates(
    epifalcon, own_data, tmp_path
):
    words = ("run", "--city", own_data, "--pathogen", "unknown", "--out")
    for more in (("--method", "hbp"), ("--beside", "mean-field")):
        said = epifalcon(*words, tmp_path / "none", *more)
        said.require_error(2, "needs the rates of the disease", alone=True)
    said = epifalcon(*words, tmp_path / "none", "--simulate")
    said.require_error(2, "needs rates to be simulated", alone=True)
    figures = epifalcon(*words, tmp_path / "run", "--json").json
    assert figures["pathogen"] == "unknown"
    experiment = Experiment.load(str(tmp_path / "run" / "settings.toml"))
    assert experiment.believed_pathogen.is_unknown
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    assert "--pathogen unknown" in page


MARK = "SIMULATED: the outbreak and all test results are simulated on the traces of"


def test_an_outbreak_on_real_people_needs_simulate_and_is_marked(
    epifalcon, own_data, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(own_data, "untested")
    shutil.rmtree("untested/known")
    for city in ("untested", "trial"):
        refused = epifalcon("run", "--city", city, "--out", "refused")
        refused.require_error(2, "no test results of them", alone=True)
        assert "epifalcon import --tests" in refused.err
        assert "add --simulate" in refused.err
        if city == "untested":
            words = ("--seed", 2, "--simulate", "--out", "trial", "--json")
            said = epifalcon("run", "--city", own_data, *words)
    assert said.json["simulated_on_real_people"]
    assert said.json["metrics"] is not None
    assert MARK in said.err
    assert json.loads(Path("trial/summary.json").read_text())[
        "simulated_on_real_people"
    ]
    assert Path("trial/report.html").read_text().count(MARK) == 2
    for table in Path("trial/tables").iterdir():
        assert "simulated_on_real_people" in table.read_text(), table
    shown = epifalcon("run", "--resume", "--out", "trial")
    assert "(SIMULATED on real people)" in shown.out
    listed = epifalcon("predict", "trial", "--out", "list.csv", "--json")
    assert MARK in listed.err
    table = pl.read_csv("list.csv")
    assert table["simulated_on_real_people"].all()
    person = table["person"][0]
    explained = epifalcon("explain", "trial", person)
    state = epifalcon("update", "state", "--from", "trial", "--json")
    again = epifalcon("update", "state", "--json")
    in_state = epifalcon("explain", "state", person)
    assert MARK in explained.out
    assert MARK in in_state.out
    assert state.json["simulated_on_real_people"]
    assert again.json["simulated_on_real_people"]
    parts = epifalcon("federate", "deal", "trial", "--out", "parts")
    parts.require_error(2, "simulated on imported people", alone=True)
    both = epifalcon("run", "--city", own_data, "--known", "trial", "--out", "both")
    both.require_error(2, "these test results are simulated")
    # A run with the tests that were imported has no mark.
    said = epifalcon("run", "--city", own_data, *DISEASE, "--out", "real", "--json")
    assert not said.json["simulated_on_real_people"]
    assert MARK not in Path("real/report.html").read_text() + said.err
    epifalcon("predict", "real", "--out", "real.csv")
    assert Path("real/risks.csv").read_text() == Path("real.csv").read_text()
    assert not Path("trial/risks.csv").exists()
    assert "simulated_on_real_people" not in Path("real.csv").read_text()


@pytest.mark.parametrize("mode", ["sums", "local", "paper"])
def test_noise_does_not_cover_an_outbreak_simulated_on_real_traces(
    epifalcon, own_data, tmp_path, mode
):
    """One person's trace decides whom that person infects: the tests of others."""
    words = ["run", "--city", own_data, "--simulate", "--mode", mode]
    words += ["--method", "falcon" if mode == "paper" else "falcon-field"]
    said = epifalcon(*words, "--out", tmp_path / "run")
    said.require_error(2, "changes the tests of others", alone=True)
    assert list(tmp_path.glob("run*")) == []
    beside = ("--set", "field_privacy.mode=sums", "--beside", "falcon-field")
    words = ("run", "--city", own_data, "--simulate", "--method", "hbp", *beside)
    said = epifalcon(*words, "--out", tmp_path / "run")
    said.require_error(2, "changes the tests of others", alone=True)
    if mode == "sums":
        said = epifalcon(*words, "--insecure-seed", "--out", tmp_path / "run")
        assert said.code == 0, said.err
        assert "NOT PRIVATE" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    "words", [DISEASE, ("--known", "own", *DISEASE), ("--simulate",)]
)
def test_the_command_of_a_report_repeats_the_run(
    epifalcon, own_data, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    words = ("--city", own_data.name, *words, "--seed", 3)
    said = epifalcon("run", *words, "--out", "runs/my run")
    assert said.code == 0, said.err
    page = html.unescape((tmp_path / "runs/my run/report.html").read_text())
    predict = "epifalcon predict 'runs/my run' --out risks.csv" in page
    assert predict == ("--simulate" not in words), "only if nobody was evaluated"
    assert "epifalcon explain 'runs/my run' PERSON" in page
    _, settings = page.split('id="settings"')
    assert "[outbreak]" in settings
    assert "[city]" not in settings, "the city was not simulated"
    [command] = re.findall("epifalcon (run --city .*? --out again)", page)
    assert epifalcon(*shlex.split(command)).code == 0
    first, again = (FinishedRun.open(Path(run)) for run in ("runs/my run", "again"))
    assert first.experiment == again.experiment
    assert first.simulated_on_real_people == again.simulated_on_real_people
    assert first.simulated_on_real_people == ("--simulate" in words)
    assert np.array_equal(first.known.status, again.known.status)
    assert np.array_equal(first.risks().probability, again.risks().probability)


def test_the_mode_is_that_of_the_method_that_runs(epifalcon, own_data, tmp_path):
    words = ("--city", own_data, "--known", own_data, *DISEASE, "--json", "--out")
    said = epifalcon("run", *words, tmp_path / "field", "--mode", "sums")
    assert said.json["method"] == "falcon-field"
    settings = Experiment.load(str(tmp_path / "field" / "settings.toml"))
    assert settings.field_privacy.mode == "sums"
    assert "delta" not in said.err
    large = ("--mode", "sums", "--set", "field_privacy.delta=0.5")
    said = epifalcon("run", *words, tmp_path / "large", *large)
    assert "delta=0.5 is not below 1 /" in said.err
    resumed = epifalcon(
        "run", "--resume", "--mode", "sums", "--json", "--out", tmp_path / "field"
    )
    assert resumed.code == 0, resumed.err
    refused = epifalcon("run", *words, tmp_path / "paper", "--mode", "paper")
    refused.require_error(2, "--mode paper is a mode of falcon, not of falcon-field")
    chosen = ("--mode", "paper", "--set", "method=falcon", *FALCON)
    chosen += ("--set", "region.training.steps=2", "--set", "region.training.horizon=1")
    said = epifalcon("run", *words, tmp_path / "paper", *chosen)
    assert (said.json["method"], said.json["mode"]) == ("falcon", "paper")


@pytest.mark.parametrize("closed", [".", "private/city"])
def test_others_read_no_output_from_data_that_they_cannot_read(
    epifalcon, own_data, tmp_path, closed
):
    given = tmp_path / "given"
    shutil.copytree(own_data, given)
    if closed != ".":
        # As in a private run, which has its data in a folder of the owner.
        (given / "private").mkdir()
        (given / "city").rename(given / "private" / "city")
    (given / closed).chmod(0o700)
    words = ("--city", given, "--known", own_data, "--method", "hbp", *DISEASE)
    names = ("run", "outbreak", "inspect", "r.csv", "parts")
    out = {name: tmp_path / name for name in names}
    assert epifalcon("run", *words, "--out", out["run"]).code == 0
    parts = ("--sites", 2, "--out", out["parts"])
    assert epifalcon("federate", "deal", out["run"], *parts).code == 0
    assert epifalcon("predict", out["run"], "--out", out["r.csv"]).code == 0
    # The city is a part of a folder that others cannot read.
    city = given / ("city" if closed == "." else closed)
    assert epifalcon("outbreak", "--city", city, "--out", out["outbreak"]).code == 0
    assert epifalcon("inspect", city, "--out", out["inspect"]).code == 0
    files = [path for one in out.values() for path in (one, *one.rglob("*"))]
    assert not [path for path in files if path.stat().st_mode & 0o077]


@pytest.mark.parametrize("closed", [False, True])
def test_no_link_in_the_folder_of_a_run_is_written_through(
    epifalcon, own_data, tmp_path, closed
):
    out, target = tmp_path / "run", tmp_path / "precious"
    method = ("falcon-field", "--mode", "sums") if closed else ("hbp",)
    words = ("run", "--city", own_data, *DISEASE, "--method", *method, "--out", out)
    assert epifalcon(*words).code == 0
    # As if somebody had made this folder for others to resume.
    inputs = open_run(out)
    (out / "report.html").unlink()
    if closed:
        store.write_manifest(
            out, "run", meta={"grows": ["private/"]}, origin=store.Origin()
        )
    else:
        finish(inputs)
    target.write_text("precious")
    (out / "report.html").symlink_to(target)
    for folder in [out, out / "private"] if closed else [out]:
        said = epifalcon("run", "--resume", "--out", folder)
        assert target.read_text() == "precious"
        said.require_error(3, "is a link")
    said = epifalcon("predict", out, "--out", tmp_path / "r.csv")
    said.require_error(3, "is a link")


@pytest.mark.parametrize("mode", ["sums", "local"])
def test_noise_on_own_data_comes_from_a_secret_that_no_output_holds(
    epifalcon, own_data, tmp_path, mode
):
    words = ("run", "--city", own_data, *DISEASE, "--mode", mode, "--json")
    outs = [tmp_path / name for name in ("one", "two", "fixed", "again")]
    said = [
        epifalcon(*words, "--out", out, *(["--insecure-seed"] if number > 1 else []))
        for number, out in enumerate(outs)
    ]
    assert [one.code for one in said] == [0] * 4
    one, two, fixed, again = (FinishedRun.open(out).risks().probability for out in outs)
    assert not np.isclose(one, two).all()
    assert np.array_equal(fixed, again)
    path = outs[0] / "private" / "noise_secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # Nobody else reads where a person of a private run was.
    explained = tmp_path / "explained"
    person = FinishedRun.open(outs[0]).traces.names[0]
    assert epifalcon("explain", outs[0], person, "--out", explained).code == 0
    assert {stat.S_IMODE(one.stat().st_mode) for one in explained.iterdir()} == {0o600}
    shareable = content(outs[0])
    for words in (
        ("predict", outs[0], "--out"),
        ("explain", outs[0], person, "--out"),
        ("places", outs[0], "--out"),
        ("audit", outs[0], "--out"),
        ("inspect", outs[0], "--out"),
        ("outbreak", "--city", outs[0], "--out"),
        ("run", "--city", outs[0], *DISEASE, "--method", "hbp", "--out"),
    ):
        refused = epifalcon(*words, outs[0] / "figures" / "it.csv")
        refused.require_error(6, "among the shareable files")
    assert content(outs[0]) == shareable
    # Explain the refusal to those who have only the shareable files.
    received = tmp_path / "received"
    shutil.copytree(outs[0], received, ignore=shutil.ignore_patterns("private"))
    refused = epifalcon("predict", received, "--out", tmp_path / "r.csv")
    refused.require_error(3, "only the shareable files of a private run")
    secret = path.read_text()
    forms = secret.encode(), bytes.fromhex(secret), str(int(secret, 16)).encode()
    shared = [
        *(data for name, data in content(outs[0]).items() if name[:8] != "private/"),
        *(text.encode() for text in (said[0].out, said[0].err)),
    ]
    assert not [data for data in shared for form in forms if form in data]
    # A fixed seed is marked wherever its results are shown.
    assert not (outs[2] / "private").exists()
    for out, run, marked in ((outs[0], said[0], False), (outs[2], said[2], True)):
        data = data_folder(out)
        texts = [run.err, (out / "report.html").read_text()]
        texts += [(data / f).read_text() for f in ("report.html", "tables/methods.csv")]
        assert [("NOT PRIVATE" in text) for text in texts] == [marked] * 4
        assert run.json["insecure_seed"] == marked
        stored = json.loads((data / "summary.json").read_text())
        assert stored["insecure_seed"] == marked
    refused = epifalcon("run", "--resume", "--insecure-seed", "--out", outs[0])
    refused.require_error(2, "was created without --insecure-seed")


def test_tests_that_do_not_fit_are_refused(epifalcon, run_town, tiny, tmp_path):
    epifalcon("city", "--out", tmp_path / "city", *tiny)
    none = np.zeros(0, np.int32)
    fewer = TestResults(119, none, none.astype(np.bool_), none)
    fewer.save(tmp_path / "fewer", store.Origin())
    words = ("--city", tmp_path / "city", "--known", tmp_path / "fewer")
    run_town(*words).require_error(3, "tests are of 119 people")
    said = run_town("--city", tmp_path / "city", "--known", tmp_path / "city")
    said.require_error(3, "holds 'city', expected 'known'")
    assert names(tmp_path) == ["city", "fewer"]


def test_a_method_beside_that_fails_does_not_take_the_run_down(
    run_town, tmp_path, monkeypatch
):
    def refuse(*_):
        raise DataError("not with these <traces>")

    monkeypatch.setattr("epifalcon.methods.contact_tracing.SoftDctRatio.score", refuse)
    said = run_town("--json", "--method", "hgnn", "--beside", "soft-dct-ratio")
    assert said.code == 0
    message = "soft-dct-ratio has no result: not with these <traces>"
    assert message in said.err
    figures = said.json
    assert figures["failed"] == {"soft-dct-ratio": "not with these <traces>"}
    assert figures["beside"] == {}
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "has no result: not with these &lt;traces&gt;" in page
    again = run_town("--resume", "--json")
    assert timeless(again.json) == timeless(figures)
    assert message in again.err
