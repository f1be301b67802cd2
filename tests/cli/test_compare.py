"""``epifalcon compare``: its figures, its files, and what it refuses."""

import json
import shutil

import pytest

from epifalcon.experiments.experiment import Experiment
from tests.cli.runs import content, names

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def compare(epifalcon, quick, tmp_path, own):
    """Compare methods on the town into ``tmp_path / "out"``."""

    def call(*words, out="out", settings=quick):
        said = epifalcon(
            "compare", *settings, "--out", tmp_path / out, "--with", own, *words
        )
        assert "Traceback" not in said.err
        return said

    return call


BASE = ("--methods", "fine,hgnn,broken", "--seeds", 2, "--json")


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where the comparison that many tests start from is kept, and what it said."""
    return tmp_path_factory.mktemp("kept") / "out", []


@pytest.fixture
def base(compare, kept, tmp_path):
    """A comparison in ``tmp_path / "out"``: one method fine, HGNN, one that fails."""
    place, said = kept
    if not said:
        said.append(compare(*BASE))
        shutil.copytree(tmp_path / "out", place)
    else:
        shutil.copytree(place, tmp_path / "out")
    return said[0]


@pytest.fixture
def calls(own):
    """Which of the user's methods were called so far, in order."""

    def read():
        path = own.with_name("calls")
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0] for line in lines]

    return read


def rows_of(said):
    return {row["method"]: row for row in said.json["rows"]}


def test_a_seed_is_what_run_makes_of_it(base, epifalcon, quick, tmp_path):
    alone = epifalcon("run", *quick, "--method", "hgnn", "--seed", 1, "--json",
                      "--out", tmp_path / "run")  # fmt: skip
    mine, theirs = rows_of(base)["hgnn"]["by_seed"][1], alone.json
    model = Experiment.load(str(tmp_path / "run" / "settings.toml")).model
    result = {
        "seed": 1,
        **{name: theirs["metrics"][name] for name in ("auc", "dep", "log_loss")},
        "learning_rate": theirs["learning_rate"],
        "steps": theirs["best_round"],
        "at_limit": theirs["best_round"] == model.rounds,
    }
    assert {name: mine[name] for name in result} == result


def test_a_failing_method_leaves_the_others_alone(compare, calls, tmp_path):
    bad = {
        "broken": "RuntimeError: boom on two lines",
        "refused": "these traces are not for me",
        "killed": "killed by SIGKILL, probably out of memory",
        "hungry": "MemoryError",
        "leaving": "SystemExit: 6",
    }
    words = ("--methods", ",".join([*bad, "fine"]), "--seeds", 1, "--json")
    said = compare(*words)
    rows = rows_of(said)
    for name, result in bad.items():
        assert rows[name]["failed"] == f"seed 0: {result}"
        assert rows[name]["metrics"]["auc"] == dict.fromkeys(("mean", "low", "high"))
        assert rows[name]["seconds"] is rows[name]["peak_rss_mb"] is None
        assert f": seed 0: {result}\n" in said.err
    assert rows["fine"]["failed"] is None
    assert rows["fine"]["metrics"]["auc"]["low"] is None
    assert len(calls()) == 6
    kept = json.loads((tmp_path / "out/seed-0/methods/broken/failed.json").read_text())
    assert 'raise RuntimeError("boom' in kept["details"]
    # Neither what is done nor what failed is done again, unless asked for.
    assert rows_of(compare(*words)) == rows
    assert len(calls()) == 6
    assert rows_of(compare(*words, "--retry")) == rows
    assert sorted(calls()[6:]) == sorted(bad)


def test_a_repaired_file_is_run_again_and_a_changed_one_is_reported(
    base, compare, own, calls
):
    assert base.code == 0
    text = own.read_text().replace('raise RuntimeError("boom\\non two lines")', "pass")
    own.write_text(text)
    words = ("--seeds", 1, "--json", "--methods")
    before = len(calls())
    assert rows_of(compare(*words, "broken"))["broken"]["failed"] is None
    assert calls()[before:] == ["broken"]
    compare(*words, "broken,fine").require_error(2, "another version of the file")


def test_more_seeds_and_methods_only_add(base, compare, calls, tmp_path):
    few, done = rows_of(base), len(calls())
    before = content(tmp_path / "out" / "seed-0")
    # Settings need not be said again.
    words = ("--methods", "fine,dct", "--seeds", 3, "--json")
    more = rows_of(compare(*words, settings=()))
    assert calls()[done:] == ["fine"]
    assert more["fine"]["by_seed"][:2] == few["fine"]["by_seed"]
    assert more["dct"]["seeds"] == [0, 1, 2]
    after = content(tmp_path / "out" / "seed-0")
    assert {name: after[name] for name in before} == before
    assert names(tmp_path) == ["mine", "out"]
    assert [one.name for one in (tmp_path / "out").rglob(".*")] == []


@pytest.mark.parametrize(
    ("words", "code", "result"),
    [
        (("--first-seed", "-1"), 2, "first_seed=-1"),
        (("--jobs", "0"), 2, "jobs=0"),
        (("--with", "none.py"), 2, "none.py: no such file"),
        (("--set", "labels.label_share=1"), 3, "no hidden people"),
    ],
)
def test_invalid_comparisons_are_refused_and_leave_nothing(
    compare, tmp_path, words, code, result
):
    said = compare("--methods", "fine", "--seeds", 1, *words, out="deep/out")
    said.require_error(code, result, alone=True)
    assert names(tmp_path) == ["mine"]


def test_settings_are_those_of_the_beginning(base, compare, tmp_path):
    before = content(tmp_path / "out")
    said = compare("--methods", "fine", "--seeds", 1, "--set", "labels.label_share=.3")
    assert said.code == 2
    assert (
        "was created with labels.label_share=0.4; it cannot continue with 0.3"
        in said.err
    )
    said = compare("--methods", "fine", "--preset", "larger-sars", settings=())
    said.require_error(2, "was created with city.")
    assert base.code == 0
    assert content(tmp_path / "out") == before


def test_a_run_of_ones_own_method_tells_its_mistake_and_the_next_command(
    epifalcon, quick, own, tmp_path
):
    run = ("run", *quick, "--with", own, "--out", tmp_path / "my run", "--method")
    said = epifalcon(*run, "broken")
    said.require_error(2, "user-defined method 'broken' failed: RuntimeError: boom")
    assert "Traceback" not in said.err
    said = epifalcon(*run, "fine", "--overwrite")
    assert said.code == 0
    assert f"epifalcon predict '{tmp_path}/my run' --out risks.csv --with" in said.out
