import subprocess
import sys

import numpy as np
import pytest

from epifalcon.baselines import catalogue
from epifalcon.baselines.method import Method
from epifalcon.errors import SettingsError

PAPER = [
    "dct",
    "gcn",
    "gat",
    "unimp",
    "unimp-bare",
    "epignn",
    "stgcn",
    "dcrnn",
    "graph-wavenet",
    "d2stgnn",
    "dstagnn",
    "fedpregnn",
    "hgnn",
    "falcon",
]
OTHERS = [
    "soft-dct",
    "soft-dct-ratio",
    "exposure-logistic",
    "exposure-boosting",
    "mean-field",
    "hbp",
    "oracle",
]
OWN = """
import numpy as np
from epifalcon.baselines.catalogue import register
from epifalcon.baselines.method import Method

class Half(Method):
    "Everybody gets a half.\\n\\nNot more."
    name, title = "half", "Half"
    def score(self, traces, known):
        return np.full(traces.people, 0.5)

register(Half)
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))
    monkeypatch.setattr(catalogue, "_OWN", dict(catalogue._OWN))


def test_every_method_has_its_promised_name():
    import epifalcon.studies.methods  # noqa: F401

    assert set(PAPER + OTHERS) <= set(catalogue.names())
    for name in PAPER:
        assert catalogue.entry(name).kind == "paper"
    assert catalogue.entry("oracle").kind == "ceiling"
    assert "no method" in catalogue.entry("oracle").title


def test_the_list_needs_no_torch():
    code = (
        "import sys, epifalcon.studies.experiment as e; "
        "e.Experiment.load('hamlet', ['method=gcn']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(SettingsError, match=r"unknown method 'gnc'.*'gcn'.*--with"):
        catalogue.entry("gnc")


def test_a_file_of_the_users_registers_a_method(tmp_path):
    path = tmp_path / "own method.py"
    path.write_text(OWN)
    catalogue.load_file(path)
    told = catalogue.entry("half")
    assert (told.title, told.kind, told.what) == (
        "Half",
        "own",
        "Everybody gets a half.",
    )
    assert catalogue.method_class("half").name == "half"
    # Once more, as a worker or a notebook does.
    catalogue.load_file(path)
    assert catalogue.names().count("half") == 1


def test_what_such_a_file_prints_stays_out_of_standard_output(tmp_path, capsys):
    path = tmp_path / "own method.py"
    path.write_text(f"print('hello')\n{OWN}")
    catalogue.load_file(path)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "registers no method"),
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("def (", "cannot be loaded: SyntaxError"),
        (OWN.replace('"half"', '"hbp"'), "the name 'hbp' is taken"),
        (OWN.replace('name, title = "half", "Half"', ""), "has no name"),
    ],
)
def test_a_file_that_does_not_do_is_told(tmp_path, text, told):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(SettingsError, match=told):
        catalogue.load_file(path)


def test_a_file_that_is_not_there_or_no_python(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        catalogue.load_file(tmp_path / "none.py")
    path = tmp_path / "method.txt"
    path.write_text(OWN)
    with pytest.raises(SettingsError, match="expected a Python file"):
        catalogue.load_file(path)


def test_settings_are_checked_under_their_full_name():
    with pytest.raises(SettingsError, match=r"rivals\.gcn\.widht.*rivals\.gcn\.width"):
        catalogue.settings_of("gcn", {"widht": 3})
    assert catalogue.settings_of("gcn", {"width": 3}).width == 3


def test_register_is_a_decorator_too():
    @catalogue.register
    class Third(Method):
        name, title = "third", "Third"

        def score(self, traces, known):  # noqa: ARG002
            return np.full(traces.people, 1 / 3)

    assert catalogue.method_class("third") is Third
