"""The names a caller may rely on, and that naming them costs nothing."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import epifalcon

HEAVY = ("torch", "numba", "matplotlib", "polars", "scipy", "sklearn", "nvflare")


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter holds after running ``code``."""
    tail = f"\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(told.stdout.split())


def promised() -> dict[str, str]:
    """Name to module, as type checkers see them."""
    tree = ast.parse(Path(epifalcon.__file__).read_text(encoding="utf-8"))
    guarded = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name: node.module or ""
        for block in guarded
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_all_is_what_is_there():
    assert epifalcon.__all__
    assert len(set(epifalcon.__all__)) == len(epifalcon.__all__)
    missing = [name for name in epifalcon.__all__ if not hasattr(epifalcon, name)]
    assert not missing
    assert set(epifalcon.__all__) <= set(dir(epifalcon))
    assert (Path(epifalcon.__file__).parent / "py.typed").is_file()


def test_type_checkers_see_the_same_names_from_the_same_places():
    assert promised().keys() == set(epifalcon.__all__)
    for name, module in promised().items():
        there = getattr(importlib.import_module(module), name)
        assert getattr(epifalcon, name) is there, name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = epifalcon.no_such_thing


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import epifalcon; dir(epifalcon); epifalcon.__version__") == set()


def test_importing_the_command_line_loads_nothing_heavy():
    heavy = loaded_by("import epifalcon.cli.main")
    assert heavy.isdisjoint({"torch", "numba", "matplotlib", "polars", "sklearn"})


def test_the_records_of_mobility_load_neither_torch_nor_pictures():
    heavy = loaded_by("import epifalcon; epifalcon.Traces; epifalcon.MobilityModel")
    assert heavy.isdisjoint({"torch", "matplotlib", "polars"})


def test_the_page_of_the_api_tells_of_every_name():
    page = Path(__file__).parents[1] / "docs" / "reference-api.md"
    told = re.findall(r"^::: epifalcon\.(.+)$", page.read_text("utf-8"), re.MULTILINE)
    assert len(set(told)) == len(told)
    assert {name for name in told if "." not in name} == set(epifalcon.__all__)
    for place, _, name in (one.rpartition(".") for one in told if "." in one):
        there = getattr(importlib.import_module(f"epifalcon.{place}"), name)
        assert there.__doc__, name
