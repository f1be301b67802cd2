import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from epifalcon import machine
from epifalcon.machine import cores, free_mb, pages_reused, peak_rss_mb, rss_mb


def test_the_machine_has_cores_and_memory():
    assert 1 <= cores() <= os.cpu_count()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    assert 0 < free_mb() < total


@pytest.mark.parametrize("version", ["_V1", "_V2"])
def test_a_container_has_what_its_limit_leaves(monkeypatch, tmp_path, version):
    names = {
        "_V1": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        "_V2": ("memory.max", "memory.current"),
    }
    for other in names:
        monkeypatch.setattr(machine, other, Path("/nowhere"))
    monkeypatch.setattr(machine, version, tmp_path)
    limit, used = (tmp_path / name for name in names[version])
    limit.write_text(f"{300 * 2**20}\n")
    used.write_text(f"{250 * 2**20}\n")
    (tmp_path / "memory.stat").write_text(f"cache 9\ninactive_file {10 * 2**20}\n")
    assert free_mb() == pytest.approx(0.9 * 60)
    before = 10 * free_mb()
    limit.write_text("max\n")
    assert free_mb() > before


def test_peak_memory_is_of_this_process():
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert 10 < 0.95 * held_mb() < peak_rss_mb() < 1.05 * most
    assert rss_mb(None) == rss_mb(2**30) == 0


def held_mb():
    return rss_mb(os.getpid())


def pages_touched(steps=5):
    """Pages that are new to the process in steps which each free all they take."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        np.full(5_000_000, 1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def report_pages():
    """Print pages touched and memory held before, within and after."""
    usual, held = pages_touched(), held_mb()
    with pages_reused() as reuse_pages:
        early = pages_touched()
        reuse_pages()
        pages_touched(1)
        reused, retained = pages_touched(), held_mb()
    output = {
        "early": early / usual,
        "reused": reused / usual,
        "retained_mb": retained - held,
        "left_mb": held_mb() - held,
        "late": pages_touched() / usual,
    }
    sys.stdout.write(json.dumps(output))


def in_a_new_process(before="pass"):
    """Output of ``report_pages`` where nothing else has left holes in memory."""
    code = f"from tests import test_machine as here\n{before}\nhere.report_pages()"
    # With huge pages, which the system gives when it has some, one fault counts 512.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env=environment,
    )
    return json.loads(done.stdout)


def test_steps_reuse_the_pages_of_the_first_and_give_them_back():
    found = in_a_new_process()
    assert found["early"] > 0.9, "nothing is retained before the call"
    assert found["reused"] < 0.1
    assert found["retained_mb"] > 30
    assert found["left_mb"] < 10
    assert found["late"] > 0.9


@pytest.mark.parametrize(
    "elsewhere",
    [
        "here.machine.free_mb = lambda: 1.9 * here.peak_rss_mb()",
        "here.machine.sys.platform = 'darwin'",
    ],
)
def test_pages_come_and_go_where_memory_is_scarce_or_the_system_another(elsewhere):
    found = in_a_new_process(elsewhere)
    assert found["reused"] > 0.9
    assert found["retained_mb"] < 10
