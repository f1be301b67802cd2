import os
import subprocess
import sys
import threading
from pathlib import Path

import numba
import pytest

from epifalcon import _numba
from epifalcon._numba import each_part

PLENTY = 10**9


@pytest.fixture(params=[1, 2, 5])
def _threads(request, monkeypatch):
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", request.param)
    _numba._pool.cache_clear()
    yield
    _numba._pool.cache_clear()


@pytest.mark.usefixtures("_threads")
def test_every_part_is_done_once():
    done = []
    each_part(done.append, 16, PLENTY)
    assert sorted(done) == list(range(16))


@pytest.mark.usefixtures("_threads")
def test_an_error_in_any_part_reaches_the_caller():
    def work(part: int) -> None:
        if part == 7:
            raise ValueError("part 7")

    with pytest.raises(ValueError, match="part 7"):
        each_part(work, 16, PLENTY)


@pytest.mark.usefixtures("_threads")
def test_little_work_stays_on_the_calling_thread():
    seen = set()
    each_part(lambda _: seen.add(threading.get_ident()), 16, 10)
    assert seen == {threading.get_ident()}


def test_cached_code_is_compiled_again_when_an_imported_file_changes(tmp_path):
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    inner, outer = package / "inner.py", package / "outer.py"
    kernel = (
        "from epifalcon._numba import compiled\n{}\n"
        "@compiled\ndef {}(x):\n    return {}\n"
    )
    outer.write_text(
        kernel.format(
            "from kernels import inner\nadd = inner.add", "twice", "2 * add(x)"
        )
    )
    program = (
        "from kernels.outer import twice\n"
        "print(twice(3), sum(twice.stats.cache_hits.values()))"
    )

    def run():
        ran = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.split()

    inner.write_text(kernel.format("", "add", "x + 1"))
    assert run() == ["8", "0"]
    assert run() == ["8", "1"]
    outer.touch()
    assert run() == ["8", "1"]
    inner.write_text(kernel.format("", "add", "x + 2"))
    assert run() == ["10", "0"]


def test_cached_code_with_a_renamed_class_is_compiled_again(tmp_path):
    kernel = (
        "from typing import NamedTuple\nfrom epifalcon._numba import compiled\n"
        "class {0}(NamedTuple):\n    x: float\n"
        "@compiled\ndef twice(pair):\n    return 2 * pair.x\n"
        "print(twice({0}(1.5)))\n"
    )
    module, command = tmp_path / "kernels.py", [sys.executable, "-c", "import kernels"]
    for name in ("Pair", "Renamed"):
        module.write_text(kernel.format(name))
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.stdout == "3.0\n", ran.stderr


def test_a_file_in_the_working_directory_does_not_choose_the_cache(
    tmp_path, monkeypatch
):
    # Whoever writes the cache can run code as the user.
    settings = tmp_path / ".numba_config.yaml"
    settings.write_text(f"cache_dir: {tmp_path / 'cache'}\n")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    program = (
        "from epifalcon._numba import numba\n"
        "print([numba.config.CACHE_DIR])\n"
        # Compiling reads the settings again.
        "numba.njit(lambda x: x)(1)\n"
        "print([numba.config.CACHE_DIR])"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.split() == ["['']", "['']"], ran.stderr


@pytest.mark.parametrize("name", ["HOME", "XDG_CACHE_HOME"])
def test_no_cache_is_in_a_working_directory_of_others(tmp_path, name):
    # As without HOME and without an entry of the user, where "~" stays as it is.
    caches = "NUMBA_CACHE_DIR", "POLARS_OOC_SPILL_DIR"
    env = {key: text for key, text in os.environ.items() if key not in caches}
    program = f"import epifalcon, os; [print(os.environ[name]) for name in {caches}]"
    command = [sys.executable, "-c", program]
    (tmp_path / "~").mkdir()
    ran = subprocess.run(
        command, cwd=tmp_path, env=env | {name: "~"}, capture_output=True, text=True
    )
    paths = [Path(line) for line in ran.stdout.split()]
    assert len(paths) == 2, ran.stderr
    assert all(path.is_absolute() for path in paths)
    assert not any(tmp_path in path.parents for path in paths)


def test_a_part_may_share_out_work_itself():
    done = []

    def work(part: int) -> None:
        each_part(lambda inner: done.append((part, inner)), 4, PLENTY)

    each_part(work, 4, PLENTY)
    assert sorted(done) == [(part, inner) for part in range(4) for inner in range(4)]
