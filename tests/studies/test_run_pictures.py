import csv

import numpy as np
import pytest

from epifalcon.evaluation.curves import curve
from epifalcon.evaluation.metrics import evaluate
from epifalcon.studies import run_pictures
from epifalcon.studies.judged import Judged

PEOPLE = 1200
TRUTH = np.random.default_rng(1).random(PEOPLE) < np.linspace(0, 0.6, PEOPLE)


@pytest.fixture(autouse=True)
def _quick_pictures(monkeypatch):
    monkeypatch.setattr(
        "epifalcon.studies.figures.save",
        lambda _figure, path: path.write_bytes(b"\x89PNG"),
    )


def judged(title, risk, truth=TRUTH):
    ranked = curve(risk, truth)
    return Judged(
        method=title.lower(),
        title=title,
        metrics=evaluate(risk, truth, 0.8),
        person=np.arange(len(truth), dtype=np.int32),
        risk=risk,
        infected=truth,
        ranked=dict.fromkeys(("raw", "platt", "isotonic"), ranked),
        left_raw=None,
        isotonic=None,
    )


def pressed(people=PEOPLE):
    """Risks of which every one lies in the same bin of equal width."""
    return np.linspace(0.27, 0.29, people)


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_people_told_the_same_are_not_hidden_in_one_point(tmp_path):
    one = judged("Pressed", pressed())
    picture = run_pictures.write_reliability(tmp_path, [one])
    rows = [row for row in rows_of(tmp_path / "reliability.csv")
            if row["risk_is"] == "raw"]  # fmt: skip
    assert [int(row["people"]) for row in rows] == [120] * 10
    shares = [float(row["infected_share"]) for row in rows]
    np.testing.assert_allclose(shares, TRUTH.reshape(10, 120).mean(axis=1))
    assert shares[-1] - shares[0] > 0.4
    assert one.metrics.ece < 0.03 < 0.1 < one.metrics.ece_mass
    told = f"calibration error in equal groups {one.metrics.ece_mass:.3f}"
    assert told in picture.alt
    for word in ("masked people", "Platt", "isotonic"):
        assert word in picture.caption


@pytest.mark.parametrize(("people", "groups"), [(20, 1), (95, 3), (1200, 10)])
def test_groups_of_a_reliability_diagram_are_not_too_small(tmp_path, people, groups):
    one = judged("Few", pressed(people), TRUTH[-people:])
    run_pictures.write_reliability(tmp_path, [one])
    rows = rows_of(tmp_path / "reliability.csv")
    assert len(rows) == 3 * groups
    assert min(int(row["people"]) for row in rows) >= min(people, 30)


def test_lines_that_hide_each_other_are_named(tmp_path):
    risk = np.linspace(0, 1, PEOPLE)
    moved = risk.copy()
    moved[[500, 501]] = moved[[501, 500]]
    rng = np.random.default_rng(2)
    others = (
        judged("Own", risk),
        judged("Twin", moved),
        judged("Else", rng.random(1200)),
    )
    picture = run_pictures.write_precision_recall(tmp_path, others)
    for words in (picture.caption, picture.alt):
        assert "The lines of Own and Twin lie on each other" in words
        assert "Else lie" not in words
        assert "and Else" not in words
    apart = run_pictures.write_precision_recall(tmp_path, [others[0], others[2]])
    assert "lie on each other" not in apart.caption
