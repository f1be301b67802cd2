import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.reference import PAGE, page

HEAVY = {"torch", "numba", "numpy", "polars", "matplotlib", "scipy", "sklearn"}


def test_help_loads_no_heavy_library():
    code = (
        "import sys; from epifalcon.cli.main import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.stderr.write(' '.join(m for m in sys.modules if '.' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not HEAVY & set(done.stderr.split())


def test_wrong_arguments_are_refused_before_torch_is_loaded():
    lines = {
        "run --preset hamle --out x": "did you mean 'hamlet'",
        "run --method falcn --out x": "did you mean 'falcon'",
        "run --set city.peple=3 --out x": "did you mean 'city.people'",
        "run --city gone --out x": "gone: no such folder",
        "run --resume --out gone": "gone: no such folder",
        "audit gone": "gone: no such folder",
        "outbreak --preset hamle": "did you mean 'hamlet'",
        "inspect gone": "gone: no such folder",
    }
    code = (
        "import sys; from epifalcon.cli.main import main\n"
        f"for line in {list(lines)}:\n"
        "    sys.argv[1:] = line.split()\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code in (2, 3)\n"
        "    assert 'torch' not in sys.modules, line"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for said, expected in zip(done.stderr.splitlines(), lines.values(), strict=True):
        assert expected in said


def test_the_page_of_commands_is_the_help_that_they_print():
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("group", ["study", "federate"])
def test_a_group_without_a_command_shows_its_help_and_nothing_else(epifalcon, group):
    said = epifalcon(group)
    assert said.code == 2
    assert "Usage:" in said.out
    assert said.err == ""


def test_verbose_prints_log_messages_to_standard_error(epifalcon, tiny, tmp_path):
    words = ("run", *tiny, "--method", "soft-dct-ratio", "--json", "--out")
    plain = epifalcon(*words, tmp_path / "plain")
    assert (plain.code, plain.err) == (0, "")
    verbose = epifalcon(*words, tmp_path / "verbose", "--verbose")
    assert "INFO epifalcon.epidemic.ground_truth: " in verbose.err
    assert verbose.json.keys() == plain.json.keys()
    # The next command in the same process is silent again.
    again = epifalcon(*words, tmp_path / "again")
    assert again.err == ""
    logger = logging.getLogger("epifalcon.some_module")
    levels = {"-v": logging.INFO, "-vv": logging.DEBUG}
    for flag, level in levels.items():
        epifalcon("presets", "--json", flag)
        assert logger.getEffectiveLevel() == level
    epifalcon("presets", "--json")


def test_version(epifalcon):
    assert epifalcon("--version").out.startswith("epifalcon ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("outbreak", "--preset", "hamlt"), "did you mean 'hamlet'"),
        (("outbreak", "--set", "city.peple=3"), "did you mean 'city.people'"),
        (("outbreak", "--seed", "-1"), "seed=-1"),
        (("outbreak", "--preset", "missing.toml"), "missing.toml"),
        (("inspect", "somewhere", "--preset", "hamlet"), "not both"),
        (("outbreak", "--seeds", "none"), "--seeds"),
        (("outbrake",), "outbreak"),
    ],
)
def test_a_wrong_word_ends_with_2_and_one_clear_line(epifalcon, words, message):
    epifalcon(*words).require_error(2, message, alone=True)


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("inspect", LONG), 3),
        (("outbreak", "--preset", LONG), 3),
        (("outbreak", "--set", f"city.kind={LONG}"), 2),
        (("methods", f"{LONG} {LONG}"), 2),
        ((LONG,), 2),
        (("explain", "run\x1b[2J\nepifalcon: done", "\udcff"), 3),
    ],
)
def test_errors_are_one_short_line_without_control_characters(epifalcon, words, code):
    found = epifalcon(*words)
    found.require_error(code, "", alone=True)
    assert len(found.err) < 1100
    assert found.err.strip().isprintable()


PROGRAM = Path(sys.executable).parent / "epifalcon"


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [
        (("presets",), 1, 0),
        (("presets", "--json"), 1, 0),
        (("--version",), 1, 0),
        (("presets", "nowhere"), 2, 2),
    ],
)
def test_a_closed_stream_is_no_error(words, closed, code):
    done = subprocess.run(
        [PROGRAM, *words], capture_output=True, preexec_fn=lambda: os.close(closed)
    )
    assert (done.returncode, done.stderr) == (code, b"")


def test_a_reader_that_ends_early_is_no_error():
    with subprocess.Popen(
        [PROGRAM, "presets", "hamlet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.close()
        assert running.stderr.read() == b""


STOPS = pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, "epifalcon: interrupted; nothing was written\n"),
        (signal.SIGTERM, 128 + signal.SIGTERM, ""),
    ],
)


@STOPS
def test_a_stopped_command_leaves_nothing(tmp_path, number, code, message):
    words = ["--set", "city.people=400000", "--out", tmp_path / "new" / "big"]
    with subprocess.Popen(
        [PROGRAM, "city", *words],
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
    assert err == message
    assert list(tmp_path.iterdir()) == []


def program(body, number=0):
    """Run the command line with a command ``busy`` of its own."""
    lines = [
        "import ctypes, os, signal, sys, time",
        "from epifalcon.cli import main",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",
        f"stop = lambda: os.kill(os.getpid(), {int(number)})",
        "class Half:",
        "    def __init__(self, stopped):",
        "        stopped and stop()",
        "        self.whole = stopped",
        "    def __del__(self):",
        "        self.whole and self.other",
        "@main.app.command()",
        "def busy():",
        f"    {body}",
        "sys.argv[1:] = ['busy']",
        "main.main()",
    ]
    words = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(words, capture_output=True, text=True)


@STOPS
@pytest.mark.parametrize(
    "body",
    [
        # Compiling calls back into Python, where an exception is lost.
        "ctypes.CFUNCTYPE(None)(stop)(); time.sleep(600)",
        # What a stop caught half made cannot end.
        "Half(True)",
    ],
)
def test_a_stop_is_not_lost_and_ends_in_silence(body, number, code, message):
    done = program(body, number)
    assert (done.returncode, done.stderr) == (code, message)


def test_a_failing_destructor_without_a_stop_is_printed():
    done = program("half = Half(False); half.whole = True; del half")
    assert done.returncode == 0
    assert "has no attribute 'other'" in done.stderr


def test_processes_import_no_module_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "selectors.py").write_text("open('planted', 'w')")
    # As the installed program: a file elsewhere, so that only its children could
    # have the working directory in their path.
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\nfrom epifalcon.cli.main import main\n"
        "sys.argv = ['epifalcon', 'presets']\nmain()\n"
        "worker = multiprocessing.get_context('forkserver').Process(target=print)\n"
        "if __name__ == '__main__':\n"
        "    worker.start()\n    worker.join()\n    print('ended', worker.exitcode)"
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=shared, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "ended 0", done.stderr
    assert not (shared / "planted").exists()


def test_settings_of_plots_in_the_working_directory_are_not_executed(tmp_path):
    frames = ".f_back" * 3
    escape = (
        f"[g:=[0], g.append((g[1].gi_frame{frames}.f_builtins for _ in [0])), "
        "[x for x in g[1]][0]['open']('planted', 'w')]"
    )
    (tmp_path / "matplotlibrc").write_text(f"axes.prop_cycle: {escape}\n")
    command = [sys.executable, "-P", "-c", "import epifalcon.reports.plot_style"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "planted").exists()
