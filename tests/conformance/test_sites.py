"""The engine of many sites gives what the engines in one process give."""

import numpy as np
import pytest
import torch

from epifalcon.federation.engine import VectorisedEngine, predict, train
from epifalcon.federation.messages import unpack
from epifalcon.federation.settings import SiteRules
from tests.federation.local_sites import sites_of
from tests.federation.small_world import city, plan_of, settings_of
from tests.oracles.cohort_engine import CohortEngine

PEOPLE = 30
each_split = pytest.mark.parametrize("split", [1, 4, PEOPLE])
each_upload = pytest.mark.parametrize("uploads", ["sums", "rows"])


def cohorts_of(whole, parts):
    order = np.random.default_rng(parts).permutation(len(whole.people))
    return [whole.restrict(np.sort(some)) for some in np.array_split(order, parts)]


def both(split, uploads, copies=0, wish=None, **changes):
    settings = settings_of(precision="double", **changes)
    whole = city(PEOPLE, copies, 3)
    plan = plan_of(settings, copies, **(wish or {"mode": "off"}))
    cohorts = cohorts_of(whole, split)
    sites, transport = sites_of(cohorts, settings, plan, 5, SiteRules(uploads=uploads))
    return VectorisedEngine(whole, settings, plan, 5), sites, transport


def gap(engine, sites):
    mine, theirs = engine.state().tensors, sites.state().tensors
    assert theirs.keys() == {name for name in mine if not name.startswith("home/")}
    return max(float((mine[name] - theirs[name]).abs().max()) for name in theirs)


def scores_of(transport, fresh):
    found = np.zeros(PEOPLE)
    for site in transport.rounds.values():
        found[site.cohort.people] = site.scores(fresh=fresh)
    return found


def close_last(sites):
    """The last round is closed by the next call, whatever it is."""
    sites.look(fresh=False)


@each_split
@each_upload
@pytest.mark.parametrize("path", ["local", "exchanged"])
@pytest.mark.parametrize("kind", ["embedding", "status"])
def test_equal_without_noise(split, uploads, path, kind):
    engine, sites, transport = both(split, uploads, gradient_path=path, input=kind)
    for _ in range(5):
        assert engine.step() == pytest.approx(sites.step(), abs=1e-12)
    assert gap(engine, sites) < 1e-10
    close_last(sites)
    assert (
        np.abs(predict(engine, fresh=False) - scores_of(transport, False)).max() < 1e-10
    )
    sites.score()
    assert (
        np.abs(predict(engine, fresh=True) - scores_of(transport, True)).max() < 1e-10
    )


@each_split
@each_upload
def test_equal_with_clips_and_pseudo_places_but_no_noise(split, uploads):
    wish = {"mode": "paper", "upload_sigma": 0.0, "gradient_sigma": 0.0}
    engine, sites, _ = both(split, uploads, 2, wish)
    for _ in range(4):
        engine.step()
        assert np.isnan(sites.step())
    assert gap(engine, sites) < 1e-10


@each_split
@each_upload
@pytest.mark.parametrize(
    "wish",
    [
        {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1},
        {"mode": "local", "epsilon": 20.0},
    ],
    ids=["paper", "local"],
)
def test_the_same_receipts_with_noise_at_server_and_every_site(split, uploads, wish):
    engine, sites, transport = both(split, uploads, 2, wish)
    for _ in range(3):
        engine.step()
        sites.step()
    engine.scores(fresh=True)
    sites.score()
    assert sites.ledger.releases == engine.ledger.releases
    assert sites.ledger.head == engine.ledger.head
    for site in transport.rounds.values():
        assert site.ledger.releases == engine.ledger.releases
        assert site.ledger.head == engine.ledger.head


@each_upload
def test_keys_and_noise_are_bitwise_those_of_cohorts_in_one_process(uploads):
    wish = {"mode": "local", "epsilon": 20.0}
    settings = settings_of(precision="double")
    whole, plan = city(PEOPLE, 2, 3), plan_of(settings, 2, **wish)
    cohorts = cohorts_of(whole, 4)
    rules = SiteRules(uploads=uploads)
    sites, transport = sites_of(cohorts, settings, plan, 5, rules)
    engine = CohortEngine(cohorts, settings, plan, 5)
    train(engine, 3)
    for _ in range(3):
        sites.step()
    assert gap(engine, sites) < 1e-10
    close_last(sites)
    received = {name: site.home.received for name, site in transport.rounds.items()}
    joined = engine.state().tensors["home/received"]
    for name, site in transport.rounds.items():
        mine = joined[site.cohort.people]
        # Sums of cohorts run in the same order; single rows are added otherwise.
        if uploads == "sums":
            assert (mine == received[name]).all()
        else:
            assert torch.allclose(mine, received[name], rtol=0, atol=1e-12)


def test_places_of_one_site_alone_are_never_sent():
    _, sites, transport = both(3, "sums", 1, {"mode": "paper", "upload_sigma": 0.1})
    sites.step()
    claimed = [
        set(unpack(answer).tensors["keys"].tolist())
        for _, answer in transport.answers
        if unpack(answer).heading.phase == "announce"
    ]
    shared = {
        key
        for number, mine in enumerate(claimed)
        for key in mine
        if any(key in other for at, other in enumerate(claimed) if at != number)
    }
    sent = [
        (site, unpack(answer).tensors["rows"])
        for site, answer in transport.answers
        if "rows" in unpack(answer).tensors
    ]
    assert sent
    for site, rows in sent:
        mine = claimed[list(transport.rounds).index(site)]
        assert 0 < len(rows) == len(mine & shared) < len(mine)


def test_sums_do_not_say_who_sent_them():
    _, sites, transport = both(3, "sums", 1, {"mode": "paper", "upload_sigma": 0.1})
    sites.step()
    for _, answer in transport.answers:
        assert "person" not in unpack(answer).tensors
