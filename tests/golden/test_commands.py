"""Scores of methods on a town of 300 people, and the keys of every --json document.

A wanted change renews both with ``make golden`` and needs a line under "Changed
results" (scores) or "Changed" (keys) in CHANGELOG.md.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from epifalcon.cli.main import main
from epifalcon.experiments.run_folder import data_folder

SCORES = Path(__file__).with_name("scores.json")
KEYS = Path(__file__).with_name("json_keys.json")

CITY = ("city.people=300", "city.regions=60", "city.days=7", "outbreak.seed_count=12")
QUICK = (
    *CITY,
    "model.rounds=20",
    "model.width=8",
    "stopping.check_every=5",
    "region.training.steps=4",
    "region.network.hidden_width=4",
    "pseudo.domains.count=2",
    "pseudo.domains.least_regions=5",
    "rivals.gcn.steps=6",
    "rivals.gcn.check_every=2",
)
BESIDE = ("hgnn", "hbp", "falcon-field", "gcn")


def epifalcon(*words):
    """Run a command in this process and return its JSON document."""
    out = io.StringIO()
    argv, sys.argv = sys.argv, ["epifalcon", *map(str, words), "--json"]
    try:
        with contextlib.redirect_stdout(out):
            main()
    except SystemExit as leaving:
        if leaving.code:
            raise
    finally:
        sys.argv = argv
    return json.loads(out.getvalue())


def given(settings):
    return [word for one in settings for word in ("--set", one)]


def run(folder, *words):
    words = ("--preset", "hamlet", *given(QUICK), *words, "--insecure-seed")
    return epifalcon("run", *words, "--out", folder)


def keys_of(document):
    """Keys of a document and those one level below; of a list, its first element's."""
    found = {}
    for key, value in document.items():
        inner = value[0] if isinstance(value, list) and value else value
        found[key] = " ".join(sorted(inner)) if isinstance(inner, dict) else ""
    return found


def documents(folder):
    """Run one small case of every command that prints JSON."""
    paper = run(
        folder / "paper",
        *("--mode", "paper", "--set", "privacy.upload_sigma=0.1"),
        *("--set", "privacy.gradient_sigma=0.1", "--record-view", 20),
        *(word for name in BESIDE for word in ("--beside", name)),
    )
    yield "run", paper
    yield "run falcon off", run(folder / "off", "--mode", "off")
    field = run(folder / "sums", "--method", "falcon-field", "--mode", "sums")
    yield "run falcon-field sums", field
    plain = run(folder / "field", "--method", "falcon-field")
    yield "run falcon-field", plain
    yield "inspect", epifalcon("inspect", folder / "paper" / "city")
    yield "predict", epifalcon("predict", folder / "paper", "--out", folder / "r.csv")
    yield "explain", epifalcon("explain", folder / "field", 17)
    yield "audit", epifalcon("audit", folder / "paper")
    state = folder / "state"
    yield "update", epifalcon("update", state, "--from", folder / "field")
    city = epifalcon(
        "city", "--preset", "hamlet", *given(CITY[:3]), "--out", folder / "city"
    )
    yield "city", city
    yield "outbreak", epifalcon("outbreak", "--preset", "hamlet", *given(CITY))
    visits = folder / "visits.csv"
    visits.write_text(
        "person,start,end,region\na,2026-01-05 08:00,2026-01-05 12:00,x\n"
    )
    imported = epifalcon(
        *("import", "--visits", visits, "--kind", "stays", "--out", folder / "own")
    )
    yield "import", imported
    yield "privacy", epifalcon("privacy", "--sigma", 0.2)
    yield "methods", epifalcon("methods")
    yield "presets", epifalcon("presets")
    yield "study list", epifalcon("study", "list")
    compared = epifalcon(
        *("compare", "--preset", "hamlet", *given(CITY)),
        *("--methods", "hbp,soft-dct-ratio", "--seeds", 2, "--jobs", 1),
        *("--out", folder / "compared"),
    )
    yield "compare", compared


def golden(folder):
    """Scores by method, and keys by command."""
    scores, keys = {}, {}
    for name, document in documents(folder):
        keys[name] = keys_of(document)
        if name.startswith("run"):
            # Of private runs, metrics are raw data and not printed.
            summary = data_folder(Path(document["out"])) / "summary.json"
            exact = json.loads(summary.read_text())
            measured = {exact["method"]: exact, **exact["beside"]}
            for method, one in measured.items():
                metrics = one["metrics"]
                scores[f"{name}: {method}"] = [metrics["auc"], metrics["mean_risk"]]
    return scores, keys


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return golden(tmp_path_factory.mktemp("golden"))


def test_scores(found):
    expected = json.loads(SCORES.read_text())
    assert found[0].keys() == expected.keys()
    for name, pair in expected.items():
        assert found[0][name] == pytest.approx(pair, abs=1e-6), name


def test_keys_of_json_documents(found):
    assert found[1] == json.loads(KEYS.read_text())
