"""Sites that are late, broken or hostile: refused, counted, named, and no harm done."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from epifalcon.errors import TooFewSitesError
from epifalcon.federation.settings import SiteRules
from epifalcon.federation.sites.wire import Parcel, pack, unpack
from tests.federation.local_sites import sites_of
from tests.federation.small_world import city, plan_of, settings_of

BAD = "site-01"
PAPER = {"mode": "paper", "upload_sigma": 0.1, "gradient_sigma": 0.1}
OFF = {"mode": "off"}


def engine(wish=None, **rules):
    settings = settings_of(precision="double", gradient_path="local")
    whole = city(30, 2 if wish else 0, 3)
    plan = plan_of(settings, 2 if wish else 0, **(wish or OFF))
    cohorts = [whole.restrict(part) for part in np.array_split(np.arange(30), 3)]
    return sites_of(cohorts, settings, plan, 5, SiteRules(least_sites=2, **rules))


def at(phase, number=1):
    """Whether an answer is the one of this phase and round of the bad site."""

    def found(site, answer):
        heading = unpack(answer).heading
        return site == BAD and (heading.phase, heading.round) == (phase, number)

    return found


def changed(answer, name, change):
    parcel = unpack(answer)
    tensors = {**parcel.tensors, name: change(parcel.tensors[name])}
    return pack(Parcel(parcel.heading, tensors, parcel.told))


def headed(answer, **changes):
    parcel = unpack(answer)
    return pack(Parcel(replace(parcel.heading, **changes), parcel.tensors, parcel.told))


def told(answer, **changes):
    parcel = unpack(answer)
    return pack(Parcel(parcel.heading, parcel.tensors, {**parcel.told, **changes}))


def with_nan(rows):
    rows = rows.clone()
    rows.view(-1)[0] = torch.nan
    return rows


UPLOADS = {
    "nan": (lambda a: changed(a, "rows", with_nan), "NaN or infinity"),
    "too wide": (
        lambda a: changed(a, "rows", lambda r: torch.cat([r, r], 1)),
        "width of 6",
    ),
    "one row less": (lambda a: changed(a, "rows", lambda r: r[1:]), "rows of shape"),
    "other type": (lambda a: changed(a, "rows", torch.Tensor.float), "float32"),
    "old round": (lambda a: headed(a, round=0), "round is 0, expected 1"),
    "other phase": (lambda a: headed(a, phase="begin"), "phase is 'begin'"),
    "other run": (lambda a: headed(a, run="theirs"), "run is 'theirs'"),
    "forged site": (lambda a: headed(a, site="site-00"), "site is 'site-00'"),
    "other protocol": (lambda a: headed(a, protocol=9), "protocol is 9"),
    "garbage": (lambda _a: b"\x07" * 100, "not a message"),
    "empty": (lambda _a: b"", "0 bytes"),
    "a complaint": (lambda a: told(a, error="no\nidea"), "the site says: no idea"),
    "nothing": (lambda a: pack(Parcel(unpack(a).heading)), "lacks 'rows'"),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_a_bad_upload_is_refused_and_named_and_the_model_is_as_without_it(name):
    spoil, why = UPLOADS[name]
    sites, transport = engine(PAPER)
    hit = at("reply upload/0")
    transport.tamper = lambda site, _call, answer: (
        spoil(answer) if hit(site, answer) else answer
    )
    silent, other = engine(PAPER)
    other.tamper = lambda site, _call, answer: None if hit(site, answer) else answer
    for _ in range(3):
        sites.step()
        silent.step()
    (trouble,) = sites.board.troubles
    assert (trouble.site, trouble.round, trouble.kind) == (BAD, 1, "refused")
    assert why in trouble.why
    assert sites.board.report()["counts"] == {BAD: {"refused": 1}}
    for one, another in zip(
        sites.state().tensors.values(), silent.state().tensors.values(), strict=True
    ):
        assert (one == another).all()


@pytest.mark.parametrize("uploads", ["sums", "rows"])
def test_a_norm_beyond_clip_and_noise_is_refused(uploads):
    sites, transport = engine(PAPER, uploads=uploads)
    hit = at("begin")
    transport.tamper = lambda site, _call, answer: (
        changed(answer, "rows", lambda rows: rows * 1000)
        if hit(site, answer)
        else answer
    )
    sites.step()
    assert not sites.board.troubles
    sites.step()
    (trouble,) = sites.board.troubles
    assert "clip and noise allow" in trouble.why


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_nan, "NaN or infinity"),
        (lambda gradient: gradient[:1], "names and shapes"),
        (lambda gradient: gradient + 1e4, "clip and noise"),
    ],
)
def test_a_bad_gradient_is_refused(change, why):
    sites, transport = engine(PAPER)
    hit = at("reply upload/1")
    transport.tamper = lambda site, _call, answer: (
        changed(answer, "gradient/head.bias", change) if hit(site, answer) else answer
    )
    for _ in range(3):
        sites.step()
    (trouble,) = sites.board.troubles
    assert why in trouble.why


@pytest.mark.parametrize("weight", [-1.0, 31.0, None, "much"])
def test_a_weight_that_its_people_cannot_have_is_refused(weight):
    sites, transport = engine()
    hit = at("reply upload/1")
    transport.tamper = lambda site, _call, answer: (
        told(answer, weight=weight) if hit(site, answer) else answer
    )
    for _ in range(3):
        sites.step()
    assert [one.kind for one in sites.board.troubles] == ["refused"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _: torch.arange(10**5), "at most"),
        (lambda keys: keys.flip(0), "ascending"),
        (lambda keys: keys - 10**6, "less than 0"),
        (lambda keys: keys.double(), "64 bits"),
    ],
)
def test_bad_announcements_are_refused_and_the_site_is_left_out(change, why):
    sites, transport = engine(PAPER)

    def tamper(site, _call, answer):
        if site == BAD and unpack(answer).heading.phase == "announce":
            answer = changed(answer, "keys", change)
            count = len(unpack(answer).tensors["keys"])
            return changed(answer, "counts", lambda _: torch.ones(count).double())
        return answer

    transport.tamper = tamper
    sites.step()
    (trouble,) = sites.board.troubles
    assert why in trouble.why
    assert sites.board.present == ["site-00", BAD, "site-02"]
    for _ in range(3):
        sites.step()
    assert sites.board.present == ["site-00", "site-02"]


def test_a_call_that_comes_twice_is_answered_twice_and_done_once():
    sites, transport = engine(PAPER)
    calm, _ = engine(PAPER)
    ask = transport.ask

    def twice(calls, seconds):
        first, _ = ask(calls, seconds)
        second, failures = ask(calls, seconds)
        assert first == second
        return second, failures

    transport.ask = twice
    for _ in range(3):
        sites.step()
        calm.step()
    for one, another in zip(
        sites.state().tensors.values(), calm.state().tensors.values(), strict=True
    ):
        assert (one == another).all()
    for site in transport.rounds.values():
        assert site.ledger.releases == calm.ledger.releases


def test_a_call_for_an_earlier_round_is_refused_by_the_site():
    sites, transport = engine()
    sites.step()
    early = next(
        call for site, call in transport.calls if site == BAD and b"begin" in call
    )
    sites.step()
    answer = unpack(transport.answering[BAD].answer(early))
    assert "does not fit" in answer.told["error"]
    before = [one.state().tensors for one in (sites,)]
    sites.step()
    assert before


def test_a_late_site_sits_out_and_comes_back_with_its_old_embeddings():
    sites, transport = engine()
    sites.step()
    sites.step()
    home = transport.rounds[BAD].rounds.home.rows
    hit = at("reply upload/0", 2)
    transport.tamper = lambda site, _call, answer: None if hit(site, answer) else answer
    sites.step()
    sites.step()
    assert [one.kind for one in sites.board.troubles] == ["silent"]
    after = transport.rounds[BAD].rounds.home.rows
    assert not torch.equal(home, after)
    assert sites.board.attending == ["site-00", BAD, "site-02"]


def test_fewer_sites_than_agreed_end_the_run_with_the_model_as_it_was():
    sites, transport = engine()
    sites.step()
    before = sites.state().tensors
    transport.tamper = lambda site, _call, answer: (
        None if site in (BAD, "site-02") else answer
    )
    with pytest.raises(TooFewSitesError, match="1 sites take part, at least 2"):
        sites.step()
    assert sites.round == 1
    for name, one in sites.state().tensors.items():
        assert (one == before[name]).all()


def test_a_lost_site_is_counted_no_longer():
    sites, transport = engine(most_missed=1)
    for _ in range(2):
        sites.step()
    transport.tamper = lambda site, _call, answer: None if site == BAD else answer
    for _ in range(3):
        sites.step()
    assert sites.board.present == ["site-00", "site-02"]
    told_counts = next(
        unpack(call).tensors["counts"].numpy()
        for site, call in reversed(transport.calls)
        if site == "site-00" and "counts" in unpack(call).tensors
    )
    mine, other = (
        transport.rounds[name].rounds.cohort.incidence
        for name in ("site-00", "site-02")
    )
    sizes = dict(zip(other.edge_key.tolist(), other.size.tolist(), strict=True))
    also = np.array([sizes.get(key, 0) for key in mine.edge_key.tolist()])
    assert told_counts.tolist() == (mine.size + also).tolist()
