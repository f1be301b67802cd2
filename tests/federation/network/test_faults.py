"""Sites that are late, broken or hostile: refused, counted, named, and no harm done."""

import numpy as np
import pytest
import torch

from epifalcon.federation.messages import Packet, pack, unpack
from epifalcon.federation.settings import SiteRules
from tests.federation.local_sites import sites_of, with_header, with_tensor, with_values
from tests.federation.small_world import PAPER, city, plan_of, settings_of

BAD = "site-01"
OFF = {"mode": "off"}


def engine(privacy=None, **rules):
    settings = settings_of(precision="double", gradient_path="local")
    whole = city(30, 2 if privacy else 0, 3)
    plan = plan_of(settings, 2 if privacy else 0, **(privacy or OFF))
    cohorts = [whole.restrict(part) for part in np.array_split(np.arange(30), 3)]
    return sites_of(cohorts, settings, plan, 5, SiteRules(least_sites=2, **rules))


def spoiling(phase, spoil, number=1):
    """Spoil the bad site's answer of this phase and round; None for any round."""

    def tamper(site, _call, answer):
        packet = unpack(answer)
        at = packet.header.phase, packet.header.round
        hit = at == (phase, packet.header.round if number is None else number)
        made = spoil(packet) if site == BAD and hit else answer
        return pack(made) if isinstance(made, Packet) else made

    return tamper


def silence(_packet):
    return None


def keys(change):
    """Keys changed, with as many counts of one."""

    def spoil(packet):
        made = change(packet.tensors["keys"])
        ones = torch.ones(len(made), dtype=torch.float64)
        return Packet(packet.header, {"keys": made, "counts": ones})

    return spoil


UPLOAD, GRADIENTS = "reply upload/0", "reply upload/1"
BIAS = "gradients/head.bias"


def numbered(person):
    return person + torch.arange(len(person))


FAULTS = {
    "too wide": (UPLOAD, with_tensor("rows", lambda r: r.repeat(1, 2)), "width 12"),
    "other keys": (UPLOAD, with_tensor("keys", lambda k: k + 1), "places shared"),
    "other channel": (UPLOAD, with_values(channel="upload/0"), "an upload of 'upload"),
    "other protocol": (UPLOAD, with_header(protocol=99), "protocol is 99"),
    "complaint": (UPLOAD, with_values(error="no\nidea"), "the site reports: no idea"),
    "long row": ("begin", with_tensor("rows", lambda r: r * 1000), "noise allow"),
    "gradient less": (GRADIENTS, with_tensor(BIAS, lambda g: g[:1]), "and shapes"),
    "long gradient": (GRADIENTS, with_tensor(BIAS, lambda g: g + 1e4), "noise allow"),
    "more people": (GRADIENTS, with_values(people=11), "gradients of 11 people"),
    "off: weight below 0": (GRADIENTS, with_values(weight=-1.0), "is impossible"),
    "off: weight": (GRADIENTS, with_values(weight=31.0), "is impossible"),
    "off: no weight": (GRADIENTS, with_values(weight=None), "lack weight"),
    "off: a word": (GRADIENTS, with_values(weight="much"), "weight is invalid"),
    "rows: people": ("begin", with_tensor("person", numbered), "more rows than"),
    "rows: keys": ("begin", with_tensor("keys", lambda k: k + 10**7), "not claimed"),
    "many keys": ("presence", keys(lambda _: torch.arange(10**5)), "too many"),
    "keys back": ("presence", keys(lambda found: found.flip(0)), "ascending"),
    "keys below": ("presence", keys(lambda found: found - 10**6), "less than 0"),
    "keys of floats": ("presence", keys(torch.Tensor.double), "expected int64"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_answer_is_refused_and_named_and_the_model_is_as_without_it(name):
    phase, spoil, why = FAULTS[name]
    kind, announces = name.split(":")[0], phase == "presence"
    made = []
    for change in (spoil, silence):
        uploads = "rows" if kind == "rows" else "sums"
        sites, transport = engine(None if kind == "off" else PAPER, uploads=uploads)
        transport.tamper = spoiling(phase, change, number=None if announces else 1)
        for _ in range(4):
            sites.step()
        made.append(sites)
    sites, calm = made
    for failure in sites.calls.failures:
        assert (failure.site, failure.kind) == (BAD, "refused")
        assert why in failure.why
    assert sites.calls.failures[0].round == (0 if announces else 1)
    count = 3 if announces else 1
    assert sites.calls.report()["counts"] == {BAD: {"refused": count}}
    # Nor does a site take part that never claimed places.
    assert (BAD in sites.calls.present) != announces
    mine, theirs = sites.state().tensors, calm.state().tensors
    assert all(torch.equal(one, theirs[key]) for key, one in mine.items())


def test_a_call_that_comes_twice_is_answered_twice_and_done_once():
    sites, transport = engine(PAPER)
    calm, _ = engine(PAPER)
    send = transport.call

    def twice(calls, seconds):
        first, _ = send(calls, seconds)
        second, failures = send(calls, seconds)
        assert first == second
        return second, failures

    transport.call = twice
    for _ in range(3):
        sites.step()
        calm.step()
    mine, theirs = sites.state().tensors, calm.state().tensors
    assert all(torch.equal(one, theirs[key]) for key, one in mine.items())
    for site in transport.rounds.values():
        assert site.ledger.releases == calm.ledger.releases


def test_a_call_for_an_earlier_round_is_refused_by_the_site():
    sites, transport = engine()
    sites.step()
    early = next(call for site, call in transport.calls if site == BAD)
    sites.step()
    answer = unpack(transport.running[BAD].answer(early))
    assert "does not match" in answer.values["error"]


def test_a_lost_site_is_counted_no_longer():
    sites, transport = engine(most_missed=1)
    for _ in range(2):
        sites.step()
    transport.tamper = lambda site, _call, answer: None if site == BAD else answer
    for _ in range(3):
        sites.step()
    assert sites.calls.present == ["site-00", "site-02"]
    found = [unpack(call).tensors for site, call in transport.calls if site != BAD]
    counts = [one["counts"] for one in found if "counts" in one][-2].numpy()
    cohorts = [one.client.cohort for one in transport.rounds.values()]
    mine, other = cohorts[0].incidence, cohorts[2].incidence
    sizes = dict(zip(other.edge_key.tolist(), other.size.tolist(), strict=True))
    also = np.array([sizes.get(key, 0) for key in mine.edge_key.tolist()])
    assert counts.tolist() == (mine.size + also).tolist()
