"""The tables must agree with each other, with the text and with arithmetic."""

import itertools

import pytest

from epifalcon.epidemic.pathogen import SARS_COV_2
from epifalcon.errors import SettingsError
from epifalcon.reports.paper_values import (
    ABLATION,
    INFECTED_SHARE,
    NOISE,
    OVERALL,
    STAGE_DAYS,
    STAGES,
    Row,
)

FIELDS = ("dep", "auc", "f1", "accuracy", "bep")
IMPROVEMENT = {
    "basic-sars": Row(0.2243, 0.0652, 0.0746, 0.0214, 0.0548),
    "larger-sars": Row(0.2449, 0.0993, 0.1421, 0.0482, 0.1320),
}
"""The table's last line: Falcon over the best rival, as a share of the rival."""


@pytest.mark.parametrize("scenario", IMPROVEMENT)
def test_the_printed_improvement_follows_from_the_rows(scenario):
    rows = OVERALL[scenario]
    assert len(rows) == 13
    for name in FIELDS:
        rivals = [getattr(one, name) for key, one in rows.items() if key != "falcon"]
        gain = getattr(rows["falcon"], name) / max(filter(None, rivals)) - 1
        # The last digit is cut in some places and rounded in others.
        assert gain == pytest.approx(getattr(IMPROVEMENT[scenario], name), abs=1.01e-4)
    for method, row in rows.items():
        gaps = {name for name in FIELDS if getattr(row, name) is None}
        assert gaps == ({"dep", "auc", "bep"} if method == "dct" else set())
    gain = {"basic-sars": 0.5096, "larger-sars": 0.5649}[scenario]
    own, rival = rows["falcon"].dep, rows["fedpregnn"].dep
    assert own / rival - 1 == pytest.approx(gain, abs=1e-4), "as the text says"


def test_tables_that_share_a_setting_share_its_figures():
    larger = OVERALL["larger-sars"]
    for method in ("hgnn", "falcon"):
        for name in ("dep", "f1", "auc"):
            assert getattr(ABLATION[method], name) == getattr(larger[method], name)
    silent, bare = NOISE[0.0], ABLATION["without perturbation"]
    assert (silent.dep, silent.f1, silent.auc) == (bare.dep, bare.f1, bare.auc)


def test_more_noise_means_less_quality_and_more_attack_error():
    assert list(NOISE) == sorted(NOISE)
    for less, more in itertools.pairwise(NOISE.values()):
        assert less.norm < more.norm
        for name in ("dep", "auc", "f1"):
            assert getattr(less, name) > getattr(more, name)


def test_the_stages_hold_the_same_methods():
    assert STAGES.keys() == STAGE_DAYS.keys()
    before, after = STAGES["before"], STAGES["after"]
    assert before.keys() == after.keys() <= OVERALL["basic-sars"].keys()
    for rows in (before, after):
        assert rows["falcon"].dep == max(row.dep for row in rows.values() if row.dep)


def test_the_printed_accuracy_is_that_of_the_best_f1():
    """Best over thresholds, it could not be below the share of healthy people."""
    prevalence = INFECTED_SHARE["larger-sars"]
    for method, row in OVERALL["larger-sars"].items():
        assert row.accuracy < 1 - prevalence
        if method == "dct":
            continue
        # F1 and accuracy at one threshold give what it calls and finds.
        both = (1 - row.accuracy) / (1 - row.f1)
        found, called = row.f1 * both / 2, both - prevalence
        recall, precision = found / prevalence, found / called
        assert row.bep < recall < SARS_COV_2.extinction_recall
        assert row.dep < precision < row.bep


def test_a_second_reading_of_the_paper_agrees():
    # Read from the paper again, cell by cell, without a look at the data.
    basic, larger = OVERALL["basic-sars"], OVERALL["larger-sars"]
    assert (basic["gcn"].dep, basic["gcn"].bep) == (0.3496, 0.5111)
    assert (basic["gat"].auc, basic["gat"].accuracy) == (0.7863, 0.7659)
    assert (larger["gcn"].f1, larger["gcn"].accuracy) == (0.4285, 0.5758)
    assert (larger["dct"].f1, larger["dct"].accuracy) == (0.3949, 0.3311)
    assert STAGES["before"]["graph_wavenet"] == Row(dep=0.1276, f1=0.3457, auc=0.7864)
    assert STAGES["after"]["falcon"] == Row(dep=0.6791, f1=0.7753, auc=0.7650)
    noise = NOISE.values()
    assert [row.norm for row in noise] == [0, 0.773, 0.877, 0.892, 0.896]
    assert [row.dep for row in noise] == [0.4237, 0.4233, 0.4228, 0.4203, 0.4124]
    assert ABLATION["without region model"] == Row(dep=0.3279, f1=0.4947, auc=0.7305)
    assert ABLATION["without pseudo traces"] == Row(dep=0.4269, f1=0.5779, auc=0.8279)
    with pytest.raises(SettingsError, match="auc"):
        Row(auc=82.57)
