"""The names a caller may rely on, that they load lazily, and the main example."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import epifalcon
import epifalcon as ef

HEAVY = ("torch", "numba", "matplotlib", "polars", "scipy", "sklearn", "nvflare")
PLOTS = {"torch", "matplotlib", "polars"}
OTHERS = {
    "UNKNOWN_PATHOGEN",
    *("Clock", "Flows", "LabelSettings", "MobilityModel", "Regions", "Streams"),
    *("build_city", "draw_labels", "measure"),
}
"""Names that stay available, though the reference does not list them."""


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter holds after running ``code``."""
    tail = f"\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def typed_names() -> dict[str, tuple[str, str]]:
    """Module and name there of each name, as type checkers see them."""
    tree = ast.parse(Path(epifalcon.__file__).read_text(encoding="utf-8"))
    guarded = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for block in guarded
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_names_exist():
    assert len(set(epifalcon.__all__)) == len(epifalcon.__all__)
    wanted = {*epifalcon.__all__, *OTHERS}
    assert not [name for name in wanted if not hasattr(epifalcon, name)]
    assert set(epifalcon.__all__) <= set(dir(epifalcon))
    assert (Path(epifalcon.__file__).parent / "py.typed").is_file()


def test_type_checkers_see_the_same_names_from_the_same_modules():
    assert typed_names().keys() == {*epifalcon.__all__, *OTHERS}
    for name, (module, there) in typed_names().items():
        expected = getattr(importlib.import_module(module), there)
        assert getattr(epifalcon, name) is expected, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = epifalcon.no_such_thing


@pytest.mark.parametrize(
    ("code", "never"),
    [
        ("dir(epifalcon); epifalcon.__version__", HEAVY),
        ("epifalcon.Traces; epifalcon.MobilityModel", PLOTS),
        ("assert 'gcn' in epifalcon.methods.names()", {*PLOTS, "sklearn"}),
    ],
)
def test_names_load_only_what_they_need(code, never):
    assert loaded_by(f"import epifalcon; {code}").isdisjoint(never)


def test_methods_are_the_classes_of_the_registry():
    assert ef.methods.get("hgnn") is ef.HGNN
    assert ef.methods.get("hbp") is ef.HBP


def test_the_api_page_lists_every_name():
    page = Path(__file__).parents[1] / "docs" / "reference-api.md"
    listed = re.findall(r"^::: epifalcon\.(.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert len(set(listed)) == len(listed)
    assert {name for name in listed if "." not in name} == set(epifalcon.__all__)
    for place, _, name in (one.rpartition(".") for one in listed if "." in one):
        there = getattr(importlib.import_module(f"epifalcon.{place}"), name)
        assert there.__doc__, name


def test_the_main_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As in the README and docs.
    traces = ef.synthetic_city("hamlet", seed=7)
    outbreak = ef.simulate(traces, ef.SARS_COV_2, seed=7)
    tests, truth = ef.draw_tests(outbreak, share=0.4, seed=7)
    model = ef.FalconField().fit(traces, tests)
    risks = model.predict_proba()
    auc = ef.evaluate(risks, truth).auc
    model.risk_table().write_csv("risks.csv")
    model.report("report.html")

    assert 0.6 < auc < 0.8
    table = pl.read_csv("risks.csv")
    untested = int((~tests.tested).sum())
    assert table["known"].is_null().to_list() == [True] * untested + [False] * 800
    assert table["risk"][:untested].is_sorted(descending=True)
    np.testing.assert_allclose(risks[table["person"].to_numpy()], table["risk"])
    page = Path("report.html").read_text("utf-8")
    assert "<script" not in page
    assert "Falcon Field" in page
    assert f">{table['person'][0]}</td>" in page
