"""Every phase of a run meets every kind of bad answer, and goes on without it.

One run for each phase: two honest sites, and one more for each kind of fault, which
is honest up to that phase. All that must be refused is counted and named, nobody
else is, and the run ends as it should.
"""

import json
import struct
from dataclasses import replace

import pytest
import torch

from epifalcon.federation.falcon.server_run import MODEL, SitesRun
from epifalcon.federation.falcon.site_run import SiteRun
from epifalcon.federation.messages import Packet, pack, unpack
from epifalcon.federation.network.site_calls import SUMMARY, RunOptions
from epifalcon.federation.network.site_files import SiteFiles
from epifalcon.federation.preparation import split_sites
from epifalcon.models.tensor_files import read_tensors
from tests.federation.falcon.test_server_run import run_request, store_site
from tests.federation.local_sites import Loopback, with_header, with_values
from tests.studies import town

ANY = "every answer"
COUNTS = {"count", "presence"}
TENSORS = {*COUNTS, "states", "begin", "reply", "validate", "finish"}
PHASES = {
    "off": ("hello", "count", "states", "prepare", "presence", "totals", "begin"),
    "rows": ("presence", "reply", "validate", "finish"),
    "paper": ("presence", "reply"),
    "local": ("presence",),
}
CASES = [(kind, phase) for kind, phases in PHASES.items() for phase in phases]


def each(change):
    """Every tensor changed, but for those that say where rows belong."""

    return lambda one: replace(
        one, tensors={name: change(tensor) for name, tensor in one.tensors.items()}
    )


def filled(value):
    def change(one):
        if not one.is_floating_point():
            return torch.zeros_like(one) - 1
        one = one.clone()
        one.view(-1)[:1] = value
        return one

    return change


BAD = {
    "garbage": (lambda _: b"\x07" * 1000, ANY),
    "empty": (lambda _: b"", ANY),
    "huge heading": (lambda _: struct.pack("<Q", 2**40) + b"{" * 2**21, ANY),
    "long heading": (with_header(phase="x" * 2**19), ANY),
    "no json": (lambda _: struct.pack("<Q", 4) + b"nope", ANY),
    "a list": (lambda _: struct.pack("<Q", 2) + b"[]", ANY),
    "forged site": (with_header(site="honest-1"), ANY),
    "another run": (with_header(run="theirs"), ANY),
    "another round": (with_header(round=77), ANY),
    "another phase": (with_header(phase="hello again"), ANY),
    "a refusal": (with_values(error="it does not allow this: policy.rows"), ANY),
    "an odd refusal": (with_values(error=[{"a": 1}]), ANY),
    "no tensors": (lambda one: replace(one, tensors={}), TENSORS),
    "nan": (each(filled(torch.nan)), TENSORS),
    "infinite": (each(filled(torch.inf)), TENSORS),
    "beyond all": (each(filled(1e38)), TENSORS),
    "negative": (each(lambda one: -one - 1), COUNTS),
    "too long": (each(lambda one: torch.cat([one, one])), TENSORS),
    "too short": (each(lambda one: one[:-1]), TENSORS),
    "no axes": (each(lambda one: one.new_zeros(())), TENSORS),
    "more axes": (each(lambda one: one.unsqueeze(0)), TENSORS),
    "other types": (each(lambda one: one.to(torch.uint8)), TENSORS),
    "nobody": (with_values(people=0), {"hello", "states"}),
    "less than nobody": (with_values(people=-5), {"hello", "states"}),
    "too many": (with_values(people=10**400), {"hello", "states"}),
    "half a person": (with_values(people=0.5), {"hello", "states"}),
    "true": (with_values(people=True, regions=True), {"hello"}),
    "another clock": (with_values(clock={"slot_hours": 1, "days": 2}), {"hello"}),
    "no clock": (with_values(clock={"slot_hours": -1}), {"hello"}),
    "other regions": (with_values(regions_sha256="0" * 64), {"hello"}),
    "other size": (with_values(regions=3), {"hello"}),
}


def is_hit(kind, name, phase):
    """Whether the fault must be refused in this phase."""
    hits = BAD[name][1]
    if hits is ANY:
        return True
    # A site may keep its scores and be at fewer places than it is, nobody knows how
    # many of its people are held back, and noise may make a count negative.
    allowed = {
        ("validate", "too short"),
        ("validate", "too long"),
        ("finish", "no tensors"),
        ("presence", "too short"),
        ("local", "negative"),
    }
    return phase in hits and not allowed & {(phase, name), (kind, name)}


class Crowd(Loopback):
    """Honest sites, and one that fails in each way at one phase."""

    def __init__(self, folder, kind, phase):
        bad = [name for name in BAD if is_hit(kind, name, phase)]
        sites_data = split_sites(town.traces(), town.known(), 2)
        # Everybody else holds the same few people: what they say is thrown away.
        small = split_sites(town.traces(), town.known(), 4)[3]
        names = ["honest-1", "honest-2", *(one.replace(" ", "-") for one in bad)]
        super().__init__()
        for name, data in zip(names, [*sites_data, *[small] * len(bad)], strict=True):
            store_site(folder / name, data)
            self.running[name] = SiteRun(SiteFiles(folder / name), "first", name)

        def tamper(site, _call, answer):
            packet = unpack(answer)
            if site in names[:2] or packet.header.phase.split(" ")[0] != phase:
                return answer
            made = BAD[bad[names.index(site) - 2]][0](packet)
            return pack(made) if isinstance(made, Packet) else made

        self.tamper = tamper


@pytest.mark.parametrize(("kind", "phase"), CASES)
def test_no_bad_answer_ends_a_run(tmp_path, kind, phase):
    crowd = Crowd(tmp_path, kind, phase)
    rules = {"uploads": "rows" if kind == "rows" else "sums", "least_sites": 2}
    wanted = run_request("off" if kind == "rows" else kind, rounds=1, **rules)
    if kind != "off":
        # The region model takes longest, and its phases are met in the first kind.
        region = replace(wanted.settings.region, macro_cases="none")
        wanted = replace(wanted, settings=replace(wanted.settings, region=region))
    if phase == "validate":
        stopping = replace(wanted.settings.stopping, validation_share=0.6)
        wanted = replace(wanted, settings=replace(wanted.settings, stopping=stopping))
    place = tmp_path / "server" / "first"
    summary = SitesRun(crowd, place, wanted, RunOptions(scores=True)).run()
    assert summary["finished"]
    counts = summary["sites"]["counts"]
    assert set(counts) == set(crowd.sites) - {"honest-1", "honest-2"}
    assert all(set(one) == {"refused"} for one in counts.values())
    first = {}
    for one in summary["sites"]["troubles"]:
        first.setdefault(one["site"], one["phase"].split(" ")[0])
    assert set(first.values()) == {phase}, first
    assert all(len(one["why"]) <= 300 for one in summary["sites"]["troubles"])
    assert json.loads((place / SUMMARY).read_text())["sites"]["counts"] == counts
    for one in read_tensors(place / MODEL).values():
        assert torch.isfinite(one).all()
