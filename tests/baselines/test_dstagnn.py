import pytest
import torch

from epifalcon.baselines.dstagnn import Dstagnn, DstagnnSettings, aware_graph
from epifalcon.baselines.ground import Ground
from epifalcon.baselines.method import Scene
from epifalcon.errors import SettingsError
from epifalcon.mobility.clock import Clock
from tests.baselines import tiny
from tests.oracles.cities import random_traces
from tests.studies import town

SMALL = {"width": 8, "key_width": 4, "head_width": 8}
QUICK = DstagnnSettings(steps=4, check_every=2, learning_rates=(0.01,), **SMALL)


@pytest.mark.parametrize("days", [1, 5, 14, 40])
def test_any_number_of_days(days):
    traces = random_traces(4, 12, 4, Clock(12.0, days))
    ground = Ground(traces)
    network = Dstagnn(Scene(traces), QUICK).network(ground, 4)
    odds = network(torch.randn(12, days, 4), torch.full((12,), -1))
    assert odds.shape == (12,)
    odds.sum().backward()
    unused = [name for name, one in network.named_parameters() if one.grad is None]
    assert not unused


@pytest.mark.parametrize("name", tiny.odd_cities())
def test_odd_cities(name):
    method = Dstagnn(Scene(tiny.odd_cities()[name], seed=1), QUICK)
    risk = method.fit(tiny.odd_tests()).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()


def test_it_learns_who_lives_with_the_infected():
    settings = DstagnnSettings(**SMALL, **tiny.SHORT)
    method = Dstagnn(Scene(tiny.sixteen_houses(), seed=2), settings)
    assert tiny.tells_houses_apart(method.fit(tiny.house_tests()).predict_proba())


def test_free_embeddings_go_in_as_well():
    settings = DstagnnSettings(
        input="embedding", steps=2, learning_rates=(0.01,), **SMALL
    )
    risk = Dstagnn(Scene(town.traces()), settings).fit(town.known()).predict_proba()
    assert ((risk >= 0) & (risk <= 1)).all()


@pytest.mark.parametrize(
    "wrong", [{"blocks": 0}, {"orders": 0}, {"kernels": ()}, {"relatives": 0}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        DstagnnSettings(**wrong)


def test_the_graph_is_made_once_and_from_the_traces_alone():
    method = Dstagnn(Scene(town.traces()), QUICK)
    ground = Ground(town.traces())
    graphs = [method.network(ground, 4).blocks[0].spread._graph for _ in range(2)]
    assert graphs[0] is graphs[1]
    again = aware_graph(Ground(town.traces()), QUICK)
    assert torch.equal(again.likeness, graphs[0].likeness)
    assert again.likeness[: again.own.start].min() > 0
    assert again.likeness.max() <= 1
