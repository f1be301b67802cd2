"""``epifalcon.compare``: the command as a function."""

import pytest

from epifalcon.errors import SettingsError
from epifalcon.studies.compare import Comparison, compare

INTERVAL = {"mean": 0.7, "low": 0.6, "high": 0.8}
NOTHING = dict.fromkeys(INTERVAL)


def row(method, over, seeds):
    return {
        "method": method,
        "title": method.upper(),
        "kind": "paper",
        "seeds": seeds,
        "metrics": {"auc": over},
        "seconds": 1.5 if seeds else None,
    }


def test_a_row_per_method_also_for_one_that_failed(tmp_path):
    rows = [row("hbp", INTERVAL, [0, 1]), row("gcn", NOTHING, [])]
    table = Comparison(tmp_path, {"metrics": ["auc"], "rows": rows}).table
    assert table.rows() == [
        ("hbp", "HBP", "paper", 2, 0.7, 0.6, 0.8, 1.5),
        ("gcn", "GCN", "paper", 0, None, None, None, None),
    ]
    assert table.columns[4:7] == ["auc", "auc_low", "auc_high"]


def test_wrong_requests_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(SettingsError, match=r"unknown method 'gnc'.*'gcn'"):
        compare(tmp_path / "out", methods=["gnc"])
    with pytest.raises(SettingsError, match="seeds=0"):
        compare(tmp_path / "out", methods=["hbp"], seeds=0)
    with pytest.raises(SettingsError, match="no such file"):
        compare(tmp_path / "out", sources=[tmp_path / "own.py"])
    assert not list(tmp_path.iterdir())
