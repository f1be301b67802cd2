"""The examples run, and print what they say."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from epifalcon.methods import registry

FOLDER = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
PRINTED = {
    "audit.py": "All canaries agree",
    "compare_methods.py": "Report:",
    "first_outbreak.py": "AUC on untested people",
    "own_csv.py": "Test these first",
    "own_method.py": "SameNights(prior_people=5): AUC",
    "private_run.py": "not protected",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in a temporary folder, and forget registered methods afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(registry, "_OWN", dict(registry._OWN))
    monkeypatch.setattr(sys, "argv", ["example"])


def test_every_example_is_listed():
    assert set(SCRIPTS) == set(PRINTED)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name, capsys):
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 40
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert PRINTED[name] in capsys.readouterr().out


def test_the_notebook_runs_and_holds_no_output():
    text = (FOLDER / "quickstart.ipynb").read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    names: dict[str, object] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            exec("".join(cell["source"]), names)
    assert names["model"].scores.risk.shape == (500,)
