"""What may be shared of a private run does not depend on any person's exact data.

Two data sets differ in the trace and the test of one person. The values that were
released for the first are released for the second, too: noise makes both possible.
Then every file that may be shared must be equal, byte for byte.
"""

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from epifalcon.epidemic.test_results import TestResults
from epifalcon.experiments.run import run
from epifalcon.experiments.simulation import CITY, KNOWN
from epifalcon.federation.field.site_people import FieldSite
from epifalcon.mobility.subsample import ReportingSettings
from epifalcon.mobility.traces import Traces
from epifalcon.reports import plot_style
from epifalcon.store import Origin
from epifalcon.streams import PRIVATE
from tests.cli.runs import content, undrawn
from tests.studies import town

MODES = [
    *(("falcon-field", one) for one in ("sums", "sealed", "local")),
    *(("falcon", "paper"), ("falcon", "local")),
]


class Replay:
    """Noised sums of the sites of a first run, released again by each later run."""

    def __init__(self, monkeypatch):
        self.released, self.at = [], None
        count, sweep = FieldSite.count, FieldSite.sweep

        def counted(site):
            own = count(site)
            # Numbers of senders are the unprotected places of mode local.
            return replace(self.of(own), noises=own.noises)

        monkeypatch.setattr(FieldSite, "count", counted)
        monkeypatch.setattr(
            FieldSite, "sweep", lambda site, *given: self.of(sweep(site, *given))
        )

    def of(self, own):
        if self.at is None:
            self.released.append(own)
            return own
        self.at += 1
        return self.released[self.at - 1]


def save(folder, other=False):
    """Write the town's data; with ``other`` another trace and test of one person."""
    traces, known = town.traces(), town.known()
    by_slot, tested = traces.by_slot.copy(), known.status >= 0
    if other:
        person = int(np.flatnonzero(known.status == 1)[0])
        by_slot[:, person] = np.random.default_rng(8).choice(20, len(by_slot))
        rest = known.person != person
        tested[person] = False
        known = TestResults.from_tests(
            known.people, known.person[rest], known.positive[rest], known.slot[rest]
        )
    Traces(by_slot, traces.clock, traces.regions).save(folder / CITY, Origin())
    known.save(folder / KNOWN, Origin())


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Run one method and mode on both data sets; return the folders of the runs."""

    def draw(figure, path):
        (undrawn if PRIVATE in path.parts else plain)(figure, path)

    plain = plot_style.save
    monkeypatch.setattr(plot_style, "save", draw)

    def call(method, mode, replay=True):
        kept = Replay(monkeypatch)
        start = town.experiment()
        if method == "falcon":
            changes = {"privacy": replace(start.privacy, mode=mode)}
        else:
            # The initially infected must not be estimated from exact tests.
            changes = {"reporting": ReportingSettings(last_days=2)}
            changes["field_privacy"] = replace(start.field_privacy, mode=mode)
        experiment = replace(start, method=method, **changes)
        for name in ("one", "other"):
            folder = tmp_path / name
            save(folder / "data", other=name == "other")
            monkeypatch.chdir(folder)
            data = Path("data")
            run(experiment, Path("out"), name="town", city=data, tests=data, seed=3)
            kept.at = 0 if replay else None
        return tmp_path / "one" / "out", tmp_path / "other" / "out"

    return call


def shared(folder):
    return {
        name: text
        for name, text in content(folder).items()
        if not name.startswith(f"{PRIVATE}/")
    }


@pytest.mark.parametrize(("method", "mode"), MODES)
def test_shareable_files_depend_only_on_releases(folders, method, mode):
    one, other = folders(method, mode)
    first, second = shared(one), shared(other)
    assert {"report.html", "summary.json", "manifest.json"} <= first.keys()
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    # The data do differ, and so does all that is computed from them.
    exact = [
        json.loads((folder / PRIVATE / "summary.json").read_text())
        for folder in (one, other)
    ]
    assert exact[0]["tested"] == exact[1]["tested"] + 1
    lists = [(folder / PRIVATE / "risks.csv").read_text() for folder in (one, other)]
    assert lists[0] != lists[1]
    summary = json.loads(first["summary.json"])
    assert summary["sources"].keys() >= summary.keys() - {"sources"}
    assert summary["epsilon"] == exact[0]["epsilon"]
    assert mode == "paper" or summary["epsilon"]["person"] == pytest.approx(8)
    for path in (one / PRIVATE, *(one / PRIVATE).rglob("*")):
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == allowed, path


def test_released_values_are_shown(folders):
    one, other = folders("falcon-field", "sums", replay=False)
    first, second = (json.loads(shared(it)["summary.json"]) for it in (one, other))
    assert first["released"] != second["released"]
    assert first["sources"]["released"] == "channel tests, with noise"
    maps = [shared(folder)["figures/released-map.csv"] for folder in (one, other)]
    assert maps[0] != maps[1]
