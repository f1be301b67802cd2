import dataclasses

import numpy as np
import pytest

from epifalcon.baselines import field_runs, field_telling
from epifalcon.baselines.falcon_field import FalconField
from epifalcon.baselines.field_runs import LEDGER, held_out
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.labels import draw_labels
from epifalcon.federation.field.settings import (
    TUNING,
    FieldPrivacySettings,
    FieldWishes,
    TuningSettings,
)
from epifalcon.models.field import calibrating
from epifalcon.models.field.settings import FieldSettings, TransmissionSettings
from epifalcon.privacy.ledger import Ledger
from tests.baselines.encounters import known_of
from tests.baselines.test_hbp import judged, town_scene, world
from tests.studies import town

QUICK = FieldSettings(
    sweeps=5, folds=2, region=TransmissionSettings(from_sweep=2, choosing_sweeps=3)
)


def fitted(known, scene=None, **more):
    wishes = FieldWishes(**{"field": QUICK, **more})
    return FalconField(scene or town_scene(), wishes).fit(known)


def test_nobody_s_own_result_moves_its_own_risk_by_a_bit():
    """Nor does it have a part in the law of transmission by which it is told."""
    known = town.known()
    before = fitted(known).predict_proba()
    for person in known.person[::11]:
        after = fitted(town.flipped(known, [person])).predict_proba()
        assert after[person] == before[person]
        assert (after != before).any()


def test_nor_does_it_move_what_the_risk_is_bent_by(monkeypatch):
    """Bent whether or not it helps: a town of 80 would hardly ever show."""
    monkeypatch.setattr(field_telling, "choose_bend", calibrating.fit_bend)
    monkeypatch.setattr(calibrating, "LEAST_PEOPLE", 3)
    one = TransmissionSettings(law="scaled", from_sweep=2, choosing_sweeps=3)
    field = FieldSettings(sweeps=4, folds=3, region=one)
    known, plain = town.known(), dataclasses.replace(field, calibration="none")
    bent = fitted(known, field=field)
    before, risk = bent.predict_proba(), fitted(known, field=plain).predict_proba()
    assert bent.found.told["offset"] != 0
    assert (before != risk).all()
    np.testing.assert_array_equal(bent.found.masked_risk, before[bent.found.masked])
    for person in known.person[::11]:
        after = fitted(town.flipped(known, [person]), field=field).predict_proba()
        assert after[person] == before[person]
        assert (after != before).any()


TUNED = {
    "field": FieldSettings(
        sweeps=4,
        folds=3,
        region=TransmissionSettings(law="scaled", from_sweep=2, choosing_sweeps=3),
    ),
    "tuning": TuningSettings(steps=3, epsilon=4.0, taken="always"),
}


def test_nor_does_it_move_what_its_risk_is_tuned_by():
    known = town.known()
    tuned = fitted(known, **TUNED)
    before = tuned.predict_proba()
    assert tuned.found.told[TUNING]["taken"]
    shipped = dataclasses.replace(TUNED["field"], correction="shipped")
    assert (before != fitted(known, field=shipped).predict_proba()).any()
    for person in known.person[::11]:
        after = fitted(town.flipped(known, [person]), **TUNED).predict_proba()
        assert after[person] == before[person]
        assert (after != before).any()


def with_everybody_hidden_well(outbreak, tested):
    """The outbreak in which nobody without test was ever infected."""
    names = ("infection_slot", "infectious_slot", "onset_slot", "recovery_slot")
    cut = {name: np.where(tested, getattr(outbreak, name), -1) for name in names}
    nobody = np.full(len(tested), -1, np.int32)
    return dataclasses.replace(
        outbreak,
        **{name: one.astype(np.int32) for name, one in cut.items()},
        source_person=nobody,
        source_region=nobody,
        seeds=tested & (outbreak.infection_slot >= 0),
    )


def test_no_hidden_label_reaches_what_is_tuned():
    """With other hidden labels every risk has the same bits."""
    settings, truth = town.experiment().labels, town.epidemic().outbreak
    first = draw_labels(truth, settings, np.random.default_rng(2))
    other = with_everybody_hidden_well(truth, first.known.tested)
    second = draw_labels(other, settings, np.random.default_rng(2))
    hidden = [one.hidden.open("a test").infected for one in (first, second)]
    assert hidden[0].any()
    assert not hidden[1].any()
    before, after = (
        fitted(one.known, **TUNED).predict_proba() for one in (first, second)
    )
    np.testing.assert_array_equal(before, after)


def test_tuning_leaves_a_ledger_and_goes_on_after_a_break(tmp_path):
    scene = dataclasses.replace(town_scene(), folder=tmp_path / "field")
    first, again = (fitted(town.known(), scene, **TUNED).found for _ in range(2))
    np.testing.assert_array_equal(first.risk, again.risk)
    ledger = Ledger.open(tmp_path / "field" / LEDGER)
    assert ledger.spent().total["person"].epsilon == pytest.approx(4.0)
    assert first.told[TUNING]["epsilon"] == pytest.approx(4.0)
    assert [one.channel for one in ledger.spent().unprotected] == ["field"]
    assert "spent" not in first.told


def test_the_masked_are_the_tested():
    known = town.known()
    found = fitted(known).found
    assert sorted(found.masked) == sorted(known.person)
    assert found.told["law"] in TransmissionSettings().among


def test_a_law_is_chosen_by_folds_that_are_there_and_follow_the_missing_one():
    known = known_of(9, [(person, 1, person % 2) for person in range(8)])
    fold = np.array([0, 1, 2, 3, 0, 1, 2, 3, -1])
    assert held_out(known, fold) == [0, 1, 2, 3]
    assert held_out(known.of_people(fold != 1), fold) == [2]
    assert held_out(known.of_people(fold != 3), fold) == [0]
    assert held_out(known_of(9, []), np.full(9, -1)) == []


def regional(seed=0):
    words = ["city.people=3000", "city.regions=60", "outbreak.seed_count=60"]
    scene, labels = world("larger-sars", *words, "outbreak.regional_sigma=2", seed=seed)
    rule = dataclasses.replace(scene.rule, regional_sigma=0.0)
    return Scene(scene.traces, seed, scene.pathogen, rule), labels


def test_where_regions_differ_they_are_told_apart():
    scene, labels = regional()
    auc, laws = {}, {}
    for law in ("one", "auto"):
        region = TransmissionSettings(law=law, choosing_sweeps=6)
        field = FieldSettings(sweeps=10, folds=2, region=region)
        method = fitted(labels.known, scene, field=field)
        auc[law] = judged(method.predict_proba(), labels).auc
        laws[law] = method.found.told["law"]
    assert laws["one"] == "one"
    assert laws["auto"] in ("mild", "apart")
    assert auc["auto"] > auc["one"] + 0.01


@pytest.mark.parametrize("mode", ["sums", "local"])
def test_a_private_run_leaves_a_ledger_and_goes_on_after_a_break(mode, tmp_path):
    scene = dataclasses.replace(town_scene(), folder=tmp_path / "field")
    privacy = FieldPrivacySettings(mode=mode, epsilon=4.0, sweeps=2)
    first, again = (
        fitted(town.known(), scene, privacy=privacy).found for _ in range(2)
    )
    np.testing.assert_array_equal(first.risk, again.risk)
    assert first.told["spent"]["epsilon"]["person"] == pytest.approx(4.0)
    ledger = Ledger.open(tmp_path / "field" / LEDGER)
    assert ledger.spent().total["person"].epsilon == pytest.approx(4.0)
    assert first.masked is None
    bare = {one["channel"] for one in first.told["spent"]["unprotected"]}
    assert bare == ({"places"} if mode == "local" else set())


def test_little_noise_changes_little_and_much_noise_tells_everybody_the_same():
    known, scene = town.known(), town_scene()
    plain = FieldSettings(sweeps=2, folds=0, region=TransmissionSettings(law="one"))
    clear = fitted(known, scene, field=plain).predict_proba()
    spread = {}
    for epsilon in (1e7, 0.01):
        privacy = FieldPrivacySettings(
            mode="sums", epsilon=epsilon, sweeps=1, cells="slot", bound=4.0
        )
        spread[epsilon] = fitted(known, scene, privacy=privacy).predict_proba()
    # Of the tested, own messages stay in the sums behind noise.
    hidden = ~known.tested
    assert np.corrcoef(clear[hidden], spread[1e7][hidden])[0, 1] > 0.9
    assert np.corrcoef(clear[hidden], spread[0.01][hidden])[0, 1] < 0.5


def test_what_a_private_run_knows_of_contacts_comes_from_noised_counts(monkeypatch):
    privacy = FieldPrivacySettings(mode="sums", epsilon=4.0)
    before = fitted(town.known(), privacy=privacy).predict_proba()
    monkeypatch.setattr(field_runs, "force_of_infection", lambda *_: 9.0)
    after = fitted(town.known(), privacy=privacy).predict_proba()
    np.testing.assert_array_equal(before, after)
