import numpy as np
import pytest

from epifalcon.baselines.hbp import Hbp, HbpSettings
from epifalcon.baselines.mean_field import MeanField, MeanFieldSettings
from epifalcon.baselines.method import Scene
from epifalcon.epidemic.seir import simulate
from epifalcon.errors import SettingsError
from tests.baselines.encounters import known_of, scene_of, world_of
from tests.oracles.exact_inference import posterior
from tests.studies import town

WHOLE = MeanFieldSettings(folds=0)
LINE = [[0, 0, -1], [-1, -1, -1], [-1, 0, 0], [-1, -1, -1]]
"""Person 0 meets person 1, who later meets person 2."""


def risks(scene, tests, settings=WHOLE):
    known = known_of(scene.traces.people, tests)
    return MeanField(scene, settings).fit(known).predict_proba()


def test_without_tests_one_meeting_after_the_other_is_exact():
    scene = scene_of(LINE)
    exact = posterior(world_of(scene), [])
    np.testing.assert_allclose(risks(scene, []), exact, atol=1e-5)


def test_known_people_are_infectious_by_their_result():
    wait = scene_of([[-1, -1], [0, 0]])
    # Who is negative infects nobody; who was positive before they met was a seed.
    assert risks(wait, [(0, 1, 0)])[1] == pytest.approx(1 / 2, abs=1e-5)
    still = np.exp(-wait.pathogen.mu / 2)
    caught = 1 - np.exp(-wait.pathogen.beta / 2 / 2)
    wanted = 1 / 2 + 1 / 2 * still * caught
    assert risks(wait, [(0, 0, 1)])[1] == pytest.approx(wanted, abs=1e-4)


def test_nobody_learns_from_what_became_of_those_it_met():
    scene = scene_of(LINE)
    blind = risks(scene, [(2, 3, 1)])
    assert blind[0] == pytest.approx(risks(scene, [])[0], abs=1e-5)
    known = known_of(3, [(2, 3, 1)])
    aware = Hbp(scene, HbpSettings(folds=0)).fit(known).predict_proba()
    assert aware[0] > blind[0] + 0.01


def test_the_prior_is_the_mean_of_outbreaks():
    settings = town.experiment()
    traces = town.traces()
    scene = Scene(traces, 0, settings.pathogen, settings.outbreak)
    rng = np.random.default_rng(0)
    share = np.mean(
        [
            simulate(traces, scene.pathogen, scene.rule, rng).ever_infected()
            for _ in range(300)
        ],
        axis=0,
    )
    # Mean field lets people infect back whoever infected them: a little too much.
    error = risks(scene, []) - share
    assert np.abs(error).mean() < 0.03
    assert -0.01 < error.mean() < 0.03


def test_nobody_s_own_result_moves_its_own_risk():
    settings = town.experiment()
    scene = Scene(town.traces(), 0, settings.pathogen, settings.outbreak)
    known = town.known()
    before = MeanField(scene).fit(known).predict_proba()
    for person in known.person[::11]:
        after = MeanField(scene).fit(town.flipped(known, [person])).predict_proba()
        assert after[person] == before[person]


def test_wrong_settings_are_refused():
    with pytest.raises(SettingsError, match="sweeps"):
        MeanFieldSettings(sweeps=0)
