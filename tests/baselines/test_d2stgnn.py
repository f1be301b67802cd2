import pytest
import torch

from epifalcon.baselines.d2stgnn import D2stgnn, D2stgnnSettings
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.oracles.cities import random_traces
from tests.studies import town

SMALL = {"width": 8, "heads": 2, "embedding": 3, "head_width": 8}
QUICK = D2stgnnSettings(steps=4, check_every=2, learning_rates=(0.01,), **SMALL)


@pytest.mark.parametrize("days", [1, 5, 14, 40])
def test_any_number_of_days(days):
    traces = random_traces(4, 12, 4, Clock(12.0, days))
    ground = Ground(traces)
    network = D2stgnn(Scene(traces), QUICK).network(ground, 4)
    odds = network(torch.randn(12, days, 4), torch.full((12,), -1))
    assert odds.shape == (12,)
    odds.sum().backward()
    unused = [name for name, one in network.named_parameters() if one.grad is None]
    # A window of one day has no earlier days to look back to.
    assert all(days < 3 and "lags" in name for name in unused), unused


@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities(name):
    method = D2stgnn(Scene(tiny.odd_cities()[name], seed=1), QUICK)
    risk = method.fit(tiny.odd_tests()).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()


def test_it_learns_who_lives_with_the_infected():
    settings = D2stgnnSettings(**SMALL, **tiny.SHORT)
    method = D2stgnn(Scene(tiny.sixteen_houses(), seed=2), settings)
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())


def test_free_embeddings_go_in_as_well():
    settings = D2stgnnSettings(
        input="embedding", steps=2, learning_rates=(0.01,), **SMALL
    )
    risk = D2stgnn(Scene(town.traces()), settings).fit(town.known()).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize(
    "wrong", [{"layers": 0}, {"heads": 5}, {"reach": 0}, {"partners": 0}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        D2stgnnSettings(**wrong)
