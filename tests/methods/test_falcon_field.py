import dataclasses

import numpy as np
import pytest
from scipy.special import expit

from epifalcon.belief_propagation import calibration
from epifalcon.belief_propagation.seir_chain import OwnTests
from epifalcon.belief_propagation.settings import FieldSettings, TransmissionSettings
from epifalcon.epidemic.test_results import TestResults
from epifalcon.errors import SettingsError
from epifalcon.federation.field import inference_schedule
from epifalcon.federation.field.settings import (
    FalconFieldSettings,
    FieldPrivacySettings,
)
from epifalcon.federation.field.site_people import RunRisks
from epifalcon.methods import falcon_field
from epifalcon.methods.falcon_field import (
    LEDGER,
    FalconField,
    HeldOutRun,
    Recalibration,
)
from epifalcon.privacy.ledger import Ledger
from tests.methods.test_hbp import evaluated, town_scene, world
from tests.scenes import Scene, placed
from tests.studies import town

QUICK = FieldSettings(
    sweeps=5, folds=2, region=TransmissionSettings(from_sweep=2, choosing_sweeps=3)
)


def fitted(known, scene=None, **more):
    settings = FalconFieldSettings(**{"field": QUICK, **more})
    return placed(FalconField, scene or town_scene(), settings).fit(known)


def test_nobody_s_own_result_changes_its_own_recalibration(monkeypatch):
    """Always recalibrate: in a town of 80 people the gain would rarely suffice."""
    monkeypatch.setattr(falcon_field, "choose_scaling", calibration.fit_scaling)
    monkeypatch.setattr(calibration, "LEAST_PEOPLE", 3)
    one = TransmissionSettings(transmission="global", from_sweep=2, choosing_sweeps=3)
    field = FieldSettings(sweeps=4, folds=3, region=one)
    known, plain = town.known(), dataclasses.replace(field, calibration="none")
    scaled = fitted(known, field=field)
    before, risk = scaled.predict_proba(), fitted(known, field=plain).predict_proba()
    assert scaled.scores.diagnostics["offset"] != 0
    assert (before != risk).all()
    found = scaled.scores
    np.testing.assert_array_equal(found.masked_risk, before[found.masked])
    assert sorted(scaled.scores.masked) == sorted(known.person)
    for person in known.person[::11]:
        after = fitted(town.flipped(known, [person]), field=field).predict_proba()
        assert after[person] == before[person]
        assert (after != before).any()


def regional(seed=0):
    words = ["city.people=3000", "city.regions=60", "outbreak.seed_count=60"]
    scene, labels = world("larger-sars", *words, "outbreak.regional_sigma=2", seed=seed)
    rule = dataclasses.replace(scene.rule, regional_sigma=0.0)
    return Scene(scene.traces, seed, scene.pathogen, rule), labels


def test_where_regions_differ_a_regional_model_is_selected():
    scene, labels = regional()
    auc, candidates = {}, {}
    for transmission in ("fixed", "auto"):
        region = TransmissionSettings(transmission=transmission, choosing_sweeps=6)
        field = FieldSettings(sweeps=10, folds=2, region=region)
        method = fitted(labels.known, scene, field=field)
        auc[transmission] = evaluated(method.predict_proba(), labels).auc
        candidates[transmission] = method.scores.diagnostics["law"]
    assert candidates["fixed"] == "fixed"
    assert candidates["auto"] in ("regional-strong", "regional")
    assert auc["auto"] > auc["fixed"] + 0.01


def test_dated_tests_and_a_wrong_pathogen_do_not_mean_that_the_outbreak_has_passed():
    """The true transmission rate is half of the assumed one."""
    words = ["city.people=800", "city.regions=60", "city.days=40", "city.slot_hours=8"]
    words += ["outbreak.seed_count=6", "pathogen.beta=0.2", "labels.target=current"]
    scene, labels = world("hamlet", *words, seed=2)
    rule = dataclasses.replace(scene.rule, seed_count=None, seed_share=0.02)
    scene, untested = Scene(scene.traces, 2, rule=rule), ~labels.known.tested
    scores, found = {}, {}
    for rates in ("published", "auto"):
        field = FieldSettings(sweeps=10, rates=rates)
        scores[rates] = fitted(labels.known, scene, field=field).scores
        found[rates] = evaluated(scores[rates].now, labels)
    assert scores["published"].risk[untested].mean() > 0.9
    assert scores["auto"].risk[untested].mean() < 0.25
    mean = scores["auto"].now[untested].mean()
    assert mean == pytest.approx(found["auto"].prevalence, abs=0.02)
    assert found["auto"].auc > found["published"].auc + 0.05
    r0, low, high = scores["auto"].diagnostics["rates"]["r0"]
    assert low < 0.2 / scene.pathogen.mu < high
    assert r0 < scene.pathogen.r0


@pytest.mark.parametrize("mode", ["sums", "local"])
def test_a_private_run_writes_a_ledger_and_resumes(mode, tmp_path):
    scene = dataclasses.replace(town_scene(), folder=tmp_path / "field")
    privacy = FieldPrivacySettings(mode=mode, epsilon=4.0, sweeps=2)
    first, again = (
        fitted(town.known(), scene, privacy=privacy).scores for _ in range(2)
    )
    np.testing.assert_array_equal(first.risk, again.risk)
    assert first.diagnostics["spent"]["epsilon"]["person"] == pytest.approx(4.0)
    ledger = Ledger.open(tmp_path / "field" / LEDGER)
    assert ledger.spent().total["person"].epsilon == pytest.approx(4.0)
    assert first.masked is None
    bare = {one["channel"] for one in first.diagnostics["spent"]["unprotected"]}
    assert bare == ({"places"} if mode == "local" else set())


def test_little_noise_changes_little_and_much_noise_gives_everybody_the_same_risk():
    known, scene = town.known(), town_scene()
    region = TransmissionSettings(transmission="fixed")
    plain = FieldSettings(sweeps=2, folds=0, region=region)
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


def test_a_private_run_uses_noised_counts_only(monkeypatch):
    """Neither the true crowd nor the true share of others reaches the model."""
    privacy = FieldPrivacySettings(mode="sums", epsilon=4.0)
    before = fitted(town.known(), privacy=privacy).predict_proba()
    schedule = inference_schedule.InferenceSchedule
    monkeypatch.setattr(schedule, "_share_of_others", lambda _: 0.99)
    after = fitted(town.known(), privacy=privacy).predict_proba()
    np.testing.assert_array_equal(before, after)


PEOPLE, TESTED = 3000, 1200


def underestimated(seed=0):
    """Risks, and tests of people whose odds are higher by 1."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1.5, 0.7, PEOPLE)
    infected = rng.random(PEOPLE) < expit(odds + 1)
    person = np.arange(TESTED, dtype=np.int32)
    known = TestResults(PEOPLE, person, infected[:TESTED], np.zeros(TESTED, np.int32))
    return expit(odds), infected, known


def recalibrated(risk, held, known):
    result = np.full(known.people, np.nan)
    result[known.person] = known.positive
    tests = OwnTests(result, (1 - result).astype(np.float32))
    runs = [HeldOutRun(RunRisks(risk, tests), people) for risk, people in held]
    return Recalibration.fit(risk, runs, known)


def test_the_recalibration_of_held_out_people_applies_to_everybody():
    risk, infected, known = underestimated()
    found = recalibrated(risk, [(risk, known.tested)], known)
    mean = pytest.approx(infected[TESTED:].mean(), abs=0.03)
    assert found.line(risk)[TESTED:].mean() == mean
    assert found.line.offset == pytest.approx(1, abs=0.15)
    assert found.uncertainty[1, 1] == pytest.approx(1 / (TESTED * 0.22), rel=0.2)


def test_a_run_with_lower_risks_gets_the_mean_of_the_held_out_run():
    risk, _, known = underestimated()
    held = [(risk, known.tested)]
    alike = recalibrated(risk, held, known)
    shy = expit(np.log(risk / (1 - risk)) - 0.6)
    found = recalibrated(shy, held, known).line(shy)[TESTED:]
    assert found.mean() == pytest.approx(alike.line(risk)[TESTED:].mean())
    nobody = [(risk, np.zeros(PEOPLE, np.bool_))]
    for held in ([], nobody):
        np.testing.assert_array_equal(recalibrated(risk, held, known).line(risk), risk)


def test_a_run_gives_an_interval_if_requested():
    one = TransmissionSettings(transmission="fixed", choosing_sweeps=3)
    field = FieldSettings(sweeps=4, folds=3, region=one, ensemble=3)
    plain = dataclasses.replace(field, ensemble=0)
    found, without = (fitted(town.known(), field=one).scores for one in (field, plain))
    np.testing.assert_array_equal(found.risk, without.risk)
    assert without.low is None
    assert (found.low < found.risk).all()
    assert (found.risk < found.high).all()
    width = found.diagnostics["interval_width"]
    assert width == pytest.approx((found.high - found.low).mean())
    with pytest.raises(SettingsError, match="ensemble=1"):
        FieldSettings(ensemble=1)
