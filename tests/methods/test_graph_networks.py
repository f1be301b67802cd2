from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from epifalcon.epidemic.test_results import draw_validation_people
from epifalcon.methods.gat import Gat
from epifalcon.methods.gcn import Gcn
from epifalcon.methods.graph_networks import ContactGraphs, RiskNetwork
from epifalcon.streams import Streams
from tests.methods import tiny
from tests.methods.tiny import EMBEDDED, QUICK, Reader, Tiny
from tests.studies import town

KINDS = pytest.mark.parametrize(
    ("cls", "kind"),
    [(Tiny, QUICK), (Reader, QUICK), (Reader, EMBEDDED), (Tiny, EMBEDDED)],
)
MASKING = pytest.mark.parametrize(
    ("cls", "kind"), [(Tiny, QUICK), (Reader, QUICK), (Reader, EMBEDDED)]
)


@cache
def held_back():
    rng = Streams(3).numpy("validation people")
    return draw_validation_people(town.known(), QUICK.validation_share, rng)


def batches(cls, kind, tests=None):
    """Return the batches of a fit on the town; the validation people stay the same."""
    known = town.known() if tests is None else tests
    return cls(kind, seed=3).batches(town.traces(), known, held_back())


def same(one, two):
    return one is two if one is None else torch.equal(one, two)


def with_flipped(cls, kind, batch):
    """The batches where the results that ``batch`` compares are the opposite."""
    return batches(cls, kind, town.flipped(town.known(), batch.people.numpy()))


@MASKING
def test_a_fold_never_shows_a_result_that_it_compares(cls, kind):
    made = batches(cls, kind)
    for number, before in enumerate(made.folds):
        other = with_flipped(cls, kind, before).folds
        after = other[number]
        assert same(before.x, after.x)
        assert torch.equal(after.status, before.status)
        assert torch.equal(after.people, before.people)
        assert torch.equal(after.infected, 1 - before.infected)
        # The other folds do show them.
        mine, theirs = made.folds[number - 1], other[number - 1]
        assert not torch.equal(theirs.status, mine.status)
        assert kind is EMBEDDED or not same(theirs.x, mine.x)


@KINDS
def test_results_of_the_validation_people_are_shown_nowhere(cls, kind):
    before = batches(cls, kind)
    after = with_flipped(cls, kind, before.validation)
    people = before.validation.people
    both = (*before.folds, before.validation), (*after.folds, after.validation)
    for one, two in zip(*both, strict=True):
        assert same(one.x, two.x)
        assert torch.equal(one.status, two.status)
        assert (one.status[people] == -1).all()
    assert torch.equal(after.validation.infected, 1 - before.validation.infected)
    compared = torch.cat([fold.people for fold in before.folds])
    assert not torch.isin(people, compared).any()


@MASKING
def test_every_other_tested_person_is_compared_once(cls, kind):
    made, known = batches(cls, kind), town.known()
    compared = torch.cat([fold.people for fold in made.folds]).tolist()
    tested = set(np.flatnonzero(known.tested).tolist())
    assert len(compared) == len(set(compared))
    assert set(compared) == tested - set(made.validation.people.tolist())
    for fold in made.folds:
        shown = set(torch.nonzero(fold.status >= 0)[:, 0].tolist())
        assert shown == set(compared) - set(fold.people.tolist())
        truth = torch.from_numpy(known.status[fold.people.numpy()] == 1)
        assert torch.equal(fold.infected, truth.float())


class _Echo(nn.Module):
    """Returns the people shown as positive."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward(self, _x, status):
        return 5.0 * (status == 1) + 0 * self.nothing


@pytest.mark.parametrize("kind", [QUICK, EMBEDDED])
def test_the_risk_of_a_tested_person_comes_from_where_its_result_is_not_shown(kind):
    class Echo(Reader):
        def network(self, _graphs, _channels):
            return _Echo()

    found = tiny.fitted(Echo, kind).scores
    np.testing.assert_array_equal(found.risk, found.risk[0])
    assert (found.masked == held_back()).all()
    assert (found.risk[found.masked] == found.masked_risk).all()


@pytest.mark.parametrize("cls", [Gcn, Gat])
def test_the_skip_connection_adds_a_linear_map_of_the_own_input(cls):
    graphs, made = ContactGraphs(town.traces()), []
    for skip in (True, False):
        torch.manual_seed(0)
        given = batches(cls, cls.settings_type(skip=skip))
        made.append(RiskNetwork(cls(skip=skip), given, graphs).eval())
    (whole, bare), batch = made, given.final
    assert torch.equal(whole(batch), bare(batch))
    whole.linear.weight.data.normal_()
    expected = bare(batch) + batch.x.flatten(1) @ whole.linear.weight[0]
    assert torch.allclose(whole(batch), expected, atol=1e-5)
