"""Without an extra everything else works, and what needs it names it."""

import subprocess
import sys

import pytest

EXTRAS = (
    *("h3ronpy", "shapely", "nvflare", "psutil", "dp_accounting", "opacus"),
    *("torch_geometric", "tensorboard", "covasim", "starsim", "opendp"),
)


@pytest.fixture
def without_extras(monkeypatch):
    """Hide every optional package from ``import``."""
    for name in EXTRAS:
        for loaded in [one for one in sys.modules if one.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)


def test_every_module_of_the_package_imports_without_extras():
    # Loaded by NVFlare in its own processes, or where a command needs NVFlare.
    code = (
        "import importlib, pkgutil, sys\n"
        f"for name in {EXTRAS!r}: sys.modules[name] = None\n"
        "import epifalcon\n"
        "names = ('components', 'endpoints', 'messaging')\n"
        "skipped = tuple(f'nvflare.{name}' for name in names)\n"
        "for one in pkgutil.walk_packages(epifalcon.__path__, 'epifalcon.'):\n"
        "    if not one.name.endswith(skipped): importlib.import_module(one.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("without_extras", "no_pictures")
@pytest.mark.parametrize("method", ["falcon", "falcon-field"])
def test_run_and_predict_need_no_extra(epifalcon, quick, tmp_path, method):
    run, out = tmp_path / "run", tmp_path / "risks.csv"
    said = epifalcon("run", *quick, "--method", method, "--out", run)
    assert said.code == 0, said.err
    assert (run / "report.html").is_file()
    assert epifalcon("predict", run, "--out", out).code == 0


PINGS = "person,time,lat,lon\nann,2020-03-01T08:00,52.52,13.40\n"
IMPORT = ("import", "--visits", "v.csv", "--kind", "pings", "--out", "o", "--regions")


@pytest.mark.usefixtures("without_extras", "no_pictures")
@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ((*IMPORT, "h3"), "geo"),
        ((*IMPORT, "polygons", "--polygons", "areas.json"), "geo"),
        (("privacy", "--sigma", "0.2", "--rounds", "2", "--check"), "audit"),
        (("run", "--tensorboard", "--out", "o", "QUICK"), "tensorboard"),
        (("federate", "provision", "plan.toml", "--out", "kits"), "federation"),
        (("federate", "status", "."), "federation"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    epifalcon, quick, tmp_path, monkeypatch, words, extra
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.csv").write_text(PINGS)
    (tmp_path / "areas.json").write_text('{"type": "FeatureCollection"}')
    plan = 'project = "town"\nhost = "localhost"\nsites = ["a"]\n'
    (tmp_path / "plan.toml").write_text(plan)
    if words[-1] == "QUICK":
        words = (*words[:-1], *quick)
    said = epifalcon(*words)
    assert said.code == 2, said.err
    assert f"needs the extra '{extra}'" in said.err
    assert f"pip install 'epifalcon[{extra}]'" in said.err
    assert "Traceback" not in said.err
