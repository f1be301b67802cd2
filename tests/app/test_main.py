import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = ("run", "predict", "city", "outbreak", "import", "inspect", "presets")
HEAVY = {"torch", "numba", "numpy", "polars", "matplotlib", "scipy", "sklearn"}


def test_help_lists_every_command(epifalcon):
    said = epifalcon("--help")
    assert said.code == 0
    for command in COMMANDS:
        assert command in said.out


def test_help_loads_no_heavy_library():
    code = (
        "import sys; from epifalcon.app.main import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stderr.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(epifalcon, command):
    said = epifalcon(command, "--help")
    assert said.code == 0
    assert "Example" in said.out


@pytest.mark.parametrize("command", COMMANDS[:-1])
def test_every_command_with_figures_has_json_and_quiet(epifalcon, command):
    said = epifalcon(command, "--help")
    assert "--json" in said.out
    assert "--quiet" in said.out


@pytest.mark.parametrize("group", ["study", "federate"])
def test_a_group_without_a_command_shows_its_help_and_nothing_else(epifalcon, group):
    said = epifalcon(group)
    assert said.code == 2
    assert "Usage:" in said.out
    assert said.err == ""


def test_version(epifalcon):
    assert epifalcon("--version").out.startswith("epifalcon ")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("outbreak", "--preset", "hamlt"), "did you mean 'hamlet'"),
        (("outbreak", "--set", "city.peple=3"), "did you mean 'city.people'"),
        (("outbreak", "--set", "city.people=-3"), "city.people=-3"),
        (("outbreak", "--set", "city.people"), "section.key=value"),
        (("outbreak", "--set", "pathogen=omicrn"), "did you mean 'omicron'"),
        (("outbreak", "--seed", "-1"), "seed=-1"),
        (("outbreak", "--preset", "missing.toml"), "missing.toml"),
        (("inspect", "somewhere", "--preset", "hamlet"), "not both"),
        (("outbreak", "--seeds", "none"), "--seeds"),
        (("outbrake",), "outbreak"),
    ],
)
def test_a_wrong_word_ends_with_2_and_one_clear_line(epifalcon, words, told):
    said = epifalcon(*words)
    assert said.code == 2
    assert told in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


STOPS = pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (signal.SIGINT, 130, "epifalcon: interrupted; nothing was written\n"),
        (signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
)


@STOPS
def test_a_stopped_command_leaves_nothing(tmp_path, number, code, told):
    program = Path(sys.executable).parent / "epifalcon"
    words = ["--set", "city.people=400000", "--out", tmp_path / "new" / "big"]
    with subprocess.Popen(
        [program, "city", *words],
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job is started with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        while running.poll() is None and not (tmp_path / "new").exists():
            time.sleep(0.05)
        running.send_signal(number)
        _, err = running.communicate()
    assert running.returncode == code
    assert err == told
    assert list(tmp_path.iterdir()) == []


@STOPS
def test_a_stop_swallowed_by_a_callback_comes_again(number, code, told):
    # Compiling calls back into Python, where an exception is lost.
    busy = (
        "import ctypes, os, signal, sys, time\n"
        "from epifalcon.app import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "@main.app.command()\n"
        "def busy():\n"
        f"    stop = lambda: os.kill(os.getpid(), {int(number)})\n"
        "    ctypes.CFUNCTYPE(None)(stop)()\n"
        "    time.sleep(600)\n"
        "sys.argv[1:] = ['busy']\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", busy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, told)


@STOPS
def test_what_a_stop_caught_half_made_ends_in_silence(number, code, told):
    busy = (
        "import os, signal, sys\n"
        "from epifalcon.app import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Half:\n"
        "    def __init__(self):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        self.whole = True\n"
        "    def __del__(self):\n"
        "        self.whole\n"
        "@main.app.command()\n"
        "def busy():\n"
        "    Half()\n"
        "sys.argv[1:] = ['busy']\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", busy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, told)


def test_what_fails_to_end_without_a_stop_is_still_told():
    busy = (
        "import sys\n"
        "from epifalcon.app import main\n"
        "class Half:\n"
        "    def __del__(self):\n"
        "        self.whole\n"
        "@main.app.command()\n"
        "def busy():\n"
        "    Half()\n"
        "sys.argv[1:] = ['busy']\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", busy], capture_output=True, text=True)
    assert done.returncode == 0
    assert "has no attribute 'whole'" in done.stderr
