import numpy as np
import pytest

from epifalcon.baselines.field import Field, chances_of, force_of_infection
from epifalcon.baselines.hbp import (
    Damping,
    Hbp,
    HbpSettings,
    believe,
    known_late,
)
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.known import Known
from epifalcon.errors import SettingsError
from epifalcon.evaluation.metrics import evaluate
from epifalcon.mobility.clock import Clock
from epifalcon.mobility.regions import Regions
from epifalcon.mobility.reporting import keep_last_days
from epifalcon.mobility.traces import Traces
from epifalcon.models.field.disease import allowed_slots
from epifalcon.studies.experiment import Experiment
from epifalcon.studies.pipeline import make_city, run_epidemics
from tests.baselines.encounters import known_of, scene_of
from tests.oracles.cities import random_traces
from tests.oracles.pairwise_bp import PairwiseBp
from tests.studies import town

QUICK = HbpSettings(sweeps=8, folds=2)


def town_scene(traces=None):
    settings = town.experiment()
    traces = town.traces() if traces is None else traces
    return Scene(traces, 3, settings.pathogen, settings.outbreak)


def risks(known, traces=None, settings=QUICK):
    return Hbp(town_scene(traces), settings).fit(known).predict_proba()


def world(preset, *words, seed=0):
    settings = Experiment.load(preset, words)
    traces = make_city(settings, seed)
    epidemic = next(run_epidemics(settings, traces, seed))
    scene = Scene(traces, seed, settings.pathogen, settings.outbreak)
    return scene, epidemic.labels


def judged(risk, labels):
    truth = labels.hidden.open("a test")
    return evaluate(risk[truth.person], truth.infected, 0.8)


def test_nobody_s_own_result_moves_its_own_risk_by_a_bit():
    known = town.known()
    before = risks(known)
    for person in known.person[::9]:
        after = risks(town.flipped(known, [person]))
        assert after[person] == before[person]
        assert (after != before).any()


def test_the_masked_are_the_tested():
    known = town.known()
    found = Hbp(town_scene(), QUICK).fit(known).found
    assert sorted(found.masked) == sorted(known.person)
    assert (found.masked_risk == found.risk[found.masked]).all()
    assert found.steps == found.told["sweeps"] > 0


def test_how_people_and_regions_are_numbered_changes_nothing_but_the_order():
    traces, known = town.traces(), town.known()
    rng = np.random.default_rng(2)
    order, place = rng.permutation(traces.people), rng.permutation(len(traces.regions))
    centres = np.empty_like(traces.regions.centre_km)
    centres[place] = traces.regions.centre_km
    ids = np.append(place, -1).astype(np.int32)[traces.by_slot][:, order]
    mixed = Traces(ids, traces.clock, Regions("area", centres))
    person = np.argsort(order)[known.person].astype(np.int32)
    moved = Known.from_tests(known.people, person, known.positive, known.slot)
    assert (risks(moved, mixed) == risks(known)[order]).all()


def test_positive_company_raises_and_negative_company_lowers_risk():
    scene = scene_of([[0, 0, 1, 1, 2, 2]] * 6, kappa=0.1)
    settings = HbpSettings(folds=0)
    risk = Hbp(scene, settings).fit(known_of(6, [(0, 5, 1), (2, 5, 0)])).predict_proba()
    assert risk[1] > risk[4] > risk[3]
    assert risk[4] == pytest.approx(risk[5], abs=1e-6)


@pytest.mark.parametrize(
    "tests", [[], [(0, 1, 0)], [(0, 1, 1)], [(0, 0, 1), (1, 1, 1)]]
)
@pytest.mark.parametrize(
    "ids",
    [
        [[-1, -1, -1], [-1, -1, -1]],
        [[0, 1, 2], [0, 1, 2]],
        [[0, 0, 0], [0, 0, 0]],
        [[0, 0, -1], [-1, 0, -1]],
    ],
    ids=["nobody observed", "everybody alone", "one region", "gaps"],
)
def test_poor_data_gives_a_sensible_risk(ids, tests):
    scene = scene_of(ids, kappa="r0")
    risk = Hbp(scene, QUICK).fit(known_of(3, tests)).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()
    if len({len(set(slot)) for slot in ids}) == 1 and ids[0] == [0, 1, 2]:
        # Alone, nothing but being one of the seeds is left.
        np.testing.assert_allclose(risk, 1 / 3, atol=1e-5)


def test_one_person():
    scene = scene_of([[0], [0]])
    assert Hbp(scene).fit(known_of(1, [(0, 1, 1)])).predict_proba()[0] > 0.9


def pairwise(scene, known, sweeps=15):
    traces = scene.traces
    chances = chances_of(scene, traces)
    force = force_of_infection(scene, traces)
    window = allowed_slots(known, traces.slots)
    told = PairwiseBp(traces.by_slot, force, chances, window)
    for _ in range(sweeps):
        risk = told.sweep(damping=0.3)
    return risk


def test_it_ranks_as_well_as_messages_from_person_to_person():
    ours, theirs, infected = [], [], []
    words = ["city.people=80", "city.regions=60", "city.days=6", "city.slot_hours=6"]
    for seed in range(8):
        scene, labels = world("hamlet", *words, "outbreak.seed_count=5", seed=seed)
        risk = Hbp(scene, HbpSettings(folds=0)).fit(labels.known).predict_proba()
        by_pairs = pairwise(scene, labels.known)
        truth = labels.hidden.open("a test")
        assert np.corrcoef(risk[truth.person], by_pairs[truth.person])[0, 1] > 0.95
        ours.append(risk[truth.person])
        theirs.append(by_pairs[truth.person])
        infected.append(truth.infected)
    found, wanted = (
        evaluate(np.concatenate(one), np.concatenate(infected), 0.8)
        for one in (ours, theirs)
    )
    assert found.auc > wanted.auc - 0.01
    assert found.log_loss < wanted.log_loss + 0.01


@pytest.mark.parametrize("preset", ["larger-sars", "larger-omicron"])
def test_the_sweeps_come_to_rest_and_the_risks_are_calibrated(preset):
    words = ["city.people=1500", "city.regions=300", "outbreak.seed_count=15"]
    scene, labels = world(preset, *words, seed=1)
    method = Hbp(scene, HbpSettings(folds=0)).fit(labels.known)
    found = judged(method.predict_proba(), labels)
    assert method.found.told["moved"] <= HbpSettings().tolerance
    assert found.mean_risk == pytest.approx(found.prevalence, abs=0.06)
    assert found.ece < 0.06
    assert found.auc > 0.65
    uninformed = -np.log(1 - found.prevalence) * (1 - found.prevalence)
    uninformed -= np.log(found.prevalence) * found.prevalence
    assert found.log_loss < uninformed


@pytest.mark.parametrize("gain", [0.5, 5.0, 20.0])
def test_damping_learns_how_far_a_sweep_overshoots(gain):
    # A sweep that answers every error with ``gain`` times its opposite.
    damping, error = Damping(HbpSettings()), np.array([1.0, 0.5])
    for _ in range(25):
        renewed = 1 - damping.share
        change = renewed * (-gain * error - error)
        damping.after(change)
        error = error + change
    assert np.abs(error).max() < 0.01


def test_damping_stays_within_its_bounds():
    damping = Damping(HbpSettings())
    for change in ([0.1, 0.1], [0.1, 0.1], [-5.0, -5.0], [0.0, 0.0], [0.0, 0.0]):
        damping.after(np.array(change))
        assert 0.7 <= damping.share <= 0.98


class Runaway:
    """A field that thinks everybody infected unless it is damped enough."""

    def __init__(self, known):
        self.risk = np.full(known.people, 0.5)
        self._calm = np.where(known.status == 1, 0.6, 0.2)

    def sweep(self, evidence_damping, _):
        before = self.risk
        self.risk = self._calm if evidence_damping > 0.95 else np.ones(len(before))
        return self.risk - before


def test_beliefs_that_run_away_are_begun_anew_with_smaller_steps():
    known = known_of(10, [(person, 0, person < 3) for person in range(8)])
    started = []

    def start():
        started.append(True)
        return Runaway(known)

    found = believe(start, known, HbpSettings(), lambda *_: None)
    assert len(started) == 2
    assert found.risk.max() < 0.7


def test_only_tests_of_the_last_day_tell_how_it_ended():
    traces = random_traces(0, 4, 3, Clock(slot_hours=6, days=3))
    known = known_of(4, [(0, 7, 1), (1, 8, 0), (2, 3, 0), (2, 11, 1)])
    assert known_late(known, traces).tolist() == [False, True, True, False]


def test_traces_of_the_last_days_can_be_told_how_many_were_infected_before():
    words = ["city.people=1000", "city.regions=200", "outbreak.seed_count=20"]
    scene, labels = world("hamlet", *words, seed=2)
    late = keep_last_days(scene.traces, 3)
    known = labels.known.since(scene.traces.slots - late.slots)
    scene = Scene(late, 0, scene.pathogen, scene.rule)
    blind, told = (
        judged(Hbp(scene, settings).fit(known).predict_proba(), labels)
        for settings in (
            HbpSettings(folds=0),
            HbpSettings(folds=0, start_share=0.12),
        )
    )
    assert told.log_loss < blind.log_loss
    assert abs(told.mean_risk - told.prevalence) < 0.06


def test_progress_is_told():
    seen = []
    scene = town_scene()
    told = Scene(
        scene.traces,
        0,
        scene.pathogen,
        scene.rule,
        progress=lambda *words: seen.append(words),
    )
    Hbp(told, QUICK).fit(town.known())
    done = [words[1] for words in seen]
    assert done == sorted(done)
    assert done[-1] <= seen[-1][2] == 3 * QUICK.sweeps


@pytest.mark.parametrize(
    "wrong",
    [
        {"sweeps": 0},
        {"damping": 1.0},
        {"hazard_damping": -0.1},
        {"tolerance": 0.0},
        {"folds": -1},
        {"start_share": 1.5},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        HbpSettings(**wrong)


def test_a_field_needs_no_more_than_six_numbers_a_visit():
    traces = town.traces()
    field = Field(town_scene(), traces, town.known())
    held = [value for value in vars(field).values() if isinstance(value, np.ndarray)]
    per_visit = max(value.nbytes for value in held) / traces.by_slot.size
    filled = -(-traces.people // 64) * 64 / traces.people
    assert per_visit <= 24 * filled


def test_clock_of_one_slot():
    traces = Traces(
        np.zeros((1, 3), np.int32), Clock(24, 1), Regions("area", np.zeros((1, 2)))
    )
    risk = Hbp(Scene(traces)).fit(known_of(3, [(0, 0, 1), (1, 0, 0)])).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()
