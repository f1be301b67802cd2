import subprocess
import sys

import numpy as np
import pytest

from epifalcon.errors import SettingsError
from epifalcon.methods import registry
from epifalcon.methods.base import Method

OWN = """
import numpy as np
from epifalcon.methods.registry import register
from epifalcon.methods.base import Method

class Half(Method):
    "Everybody gets a half.\\n\\nNot more."
    name, title = "half", "Half"
    def score(self, traces, known):
        return np.full(traces.people, 0.5)

register(Half)
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(registry, "_OWN", dict(registry._OWN))


def test_names_and_properties_that_commands_rely_on():
    entries = [registry.entry(name) for name in registry.names()]
    assert {one.name for one in entries if one.is_federated} == {
        "falcon",
        "falcon-field",
    }
    assert {one.name for one in entries if one.trains_in_rounds} == {"hgnn", "falcon"}
    private = {one.name: one.privacy_table for one in entries if one.takes_privacy}
    assert private == {"falcon": "privacy", "falcon-field": "field_privacy"}


def test_the_registry_needs_no_torch():
    code = (
        "import sys, epifalcon.experiments.experiment as e; "
        "e.Experiment.load('hamlet', ['method=gcn']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        SettingsError, match=r"unknown method 'gnc'.*'gcn'.*--with.*register"
    ):
        registry.entry("gnc")
    with pytest.raises(SettingsError, match=r"rivals\.gcn\.widht.*rivals\.gcn\.width"):
        registry.settings_of("gcn", {"widht": 3})
    assert registry.settings_of("gcn", {"width": 3}).width == 3


def test_a_users_file_registers_a_method(tmp_path, capsys):
    path = tmp_path / "own method.py"
    path.write_text(f"print('hello')\n{OWN}")
    # Twice, as a worker or a notebook does.
    for _ in range(2):
        registry.load_file(path)
    # What it prints stays out of standard output.
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "hello\n" * 2)
    assert registry.names().count("half") == 1
    found = registry.entry("half")
    assert (found.title, found.kind) == ("Half", "own")
    assert found.summary == "Everybody gets a half."
    assert registry.method_class("half").name == "half"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "registers no method"),
        ("import nothing_of_that_name", "cannot be loaded: ModuleNotFoundError"),
        ("def (", "cannot be loaded: SyntaxError"),
        (OWN.replace('"half"', '"hbp"'), "the name 'hbp' is taken"),
        (OWN.replace('name, title = "half", "Half"', ""), "has no name"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "own.py"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        registry.load_file(path)
    with pytest.raises(SettingsError, match="no such file"):
        registry.load_file(tmp_path / "none.py")
    path.rename(tmp_path / "method.txt")
    with pytest.raises(SettingsError, match="expected a Python file"):
        registry.load_file(tmp_path / "method.txt")


def test_register_is_a_decorator_too():
    @registry.register
    class Third(Method):
        name, title = "third", "Third"

        def score(self, traces, known):  # noqa: ARG002
            return np.full(traces.people, 1 / 3)

    assert registry.method_class("third") is Third
