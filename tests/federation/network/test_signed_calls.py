"""Only calls that the server signed for this site, run and session reach a site."""

import base64
import json
import ssl
import struct
from dataclasses import replace

import pytest

from epifalcon.federation.network.signed_calls import (
    SignedAnswers,
    SignedTransport,
    UnsignedError,
    seal,
    unseal,
)
from epifalcon.federation.nvflare.provisioning import Deployment, open_kit, provision

HOST, RUN, SITES = "localhost", "first", ("clinic", "school")


@pytest.fixture(scope="module")
def signers(tmp_path_factory):
    deployment = Deployment(project="p", host=HOST, sites=SITES)
    out = tmp_path_factory.mktemp("kits")
    kits = provision(deployment, out / "ours")
    stranger = provision(deployment, out / "other")["server"]
    found = {name: open_kit(kit).credentials() for name, kit in kits.items()}
    return found | {"stranger": open_kit(stranger).credentials()}


class Network:
    """Carries sealed calls, records them, and may change what it carries."""

    def __init__(self, signers):
        self.signers, self.sites, self.calls = signers, SITES, []
        self.tamper = lambda _site, answer: answer
        self.handled = []
        self.restart()

    def restart(self):
        self.ends = {site: self.end(site) for site in SITES}

    def end(self, site, run=RUN):
        def answer(call):
            self.handled.append((site, call))
            return b"to " + call

        return SignedAnswers(self.signers[site], HOST, run, site, answer)

    def call(self, calls, seconds):
        assert seconds == 9.0
        self.calls += calls.items()
        found = {site: self.ends[site](call) for site, call in calls.items()}
        return {site: self.tamper(site, one) for site, one in found.items()}, {}

    def last(self, site):
        return [call for name, call in self.calls if name == site][-1]


@pytest.fixture
def network(signers):
    return Network(signers)


@pytest.fixture
def server(signers, network):
    return SignedTransport(network, RUN, signers["server"])


def test_each_site_gets_its_calls_and_the_server_the_answers(network, server):
    for call in (b"one", b"two"):
        answers, failures = server.call({"clinic": call, "school": call + b"s"}, 9.0)
        assert answers == {"clinic": b"to " + call, "school": b"to " + call + b"s"}
        assert failures == {}
    assert server.call({}, 9.0) == ({}, {})
    # One exchange more, at the start, from which nothing reached a site's run.
    assert len(network.calls) == 6
    assert [call for site, call in network.handled if site == "clinic"] == [
        b"one",
        b"two",
    ]


def opened(signers, data):
    return unseal(signers["server"], data, HOST)


def resealed(signers, data, signer="server", **changes):
    binding, call = opened(signers, data)
    return seal(signers[signer], replace(binding, **changes), call)


def with_certificate_of(signers, data, name):
    """Signed by its own key, under the certificate of another."""
    lengths = struct.Struct(">II")
    mine = resealed(signers, data, name)
    size, signature = lengths.unpack_from(mine)
    values = json.loads(mine[8 : 8 + size])
    theirs = lengths.unpack_from(data)[0]
    values["certificate"] = json.loads(data[8 : 8 + theirs])["certificate"]
    head = json.dumps(values).encode()
    return lengths.pack(len(head), signature) + head + mine[8 + size :]


FORGED = {
    "not signed": lambda *_: b"hello" * 100,
    "empty": lambda *_: b"",
    "huge head": lambda *_: struct.pack(">II", 2**31, 2**31) + b"{" * 1000,
    "another site's key": lambda s, d: resealed(s, d, "school", number=9),
    "its own key": lambda s, d: resealed(s, d, "clinic", number=9),
    "the administrator's key": lambda s, d: resealed(s, d, "admin", number=9),
    "another root": lambda s, d: resealed(s, d, "stranger", number=9),
    "another's certificate": lambda s, d: with_certificate_of(s, d, "school"),
    "changed message": lambda _, d: d + b"!",
    "changed head": lambda _, d: d.replace(b'"number": 2', b'"number": 9'),
    "for another site": lambda s, d: resealed(s, d, site="school", number=9),
    "of another run": lambda s, d: resealed(s, d, run="second", number=9),
    "of another version": lambda s, d: resealed(s, d, protocol=6, number=9),
    "an answer": lambda s, d: resealed(s, d, kind="answer", number=9),
    "of a session before": lambda s, d: resealed(s, d, session="0" * 32, number=9),
    "of a call before": lambda s, d: resealed(s, d, number=1),
    "another run's opening": lambda s, d: resealed(s, d, kind="open", run="second"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_replayed_or_redirected_call_changes_nothing(
    network, server, signers, name
):
    server.call({"clinic": b"hello"}, 9.0)
    call = network.last("clinic")
    with pytest.raises(UnsignedError):
        network.ends["clinic"](FORGED[name](signers, call))
    assert network.handled == [("clinic", b"hello")]
    assert server.call({"clinic": b"next"}, 9.0) == ({"clinic": b"to next"}, {})


def test_calls_recorded_before_a_restart_are_refused_after_it(network, server, signers):
    server.call({"clinic": b"hello"}, 9.0)
    recorded = [call for _, call in network.calls]
    network.restart()
    end, network.handled = network.ends["clinic"], []
    end(recorded[0])  # Tells the session only, which the recorded call does not hold.
    with pytest.raises(UnsignedError, match="another session"):
        end(recorded[1])
    assert network.handled == []
    again = SignedTransport(network, RUN, signers["server"])
    assert again.call({"clinic": b"hello"}, 9.0)[0] == {"clinic": b"to hello"}


ANSWERS = {
    "another site's key": (lambda s, d: answer_by(s, d, "school"), "not signed by"),
    "not signed": (lambda *_: b"to school", "not signed by"),
    "of another call": (lambda s, d: answer_by(s, d, number=1), "another number"),
    "of another session": (
        lambda s, d: answer_by(s, d, session="0"),
        "another session",
    ),
    "of another site": (lambda s, d: answer_by(s, d, site="school"), "another site"),
    "no answer": (lambda s, d: answer_by(s, d, kind="call"), "another kind"),
}


def answer_by(signers, data, signer="clinic", **changes):
    binding, answer = unseal(signers["clinic"], data, "clinic")
    return seal(signers[signer], replace(binding, **changes), answer)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_not_the_sites_own_fails_that_site_alone(
    network, server, signers, name
):
    forge, why = ANSWERS[name]
    server.call({"clinic": b"hello"}, 9.0)
    network.tamper = lambda site, one: forge(signers, one) if site == "clinic" else one
    answers, failures = server.call({"clinic": b"x", "school": b"y"}, 9.0)
    assert set(answers) == {"school"}
    assert why in failures["clinic"]


def test_a_certificate_that_cannot_be_read_is_a_failure_of_its_site(
    network, server, signers
):
    lines = signers["clinic"].certificate.splitlines()[1:-1]
    version = b"\xa0\x03\x02\x01"
    damaged = base64.b64decode("".join(lines)).replace(version + b"\2", version + b"\5")
    network.tamper = lambda _site, one: one.replace(
        json.dumps(signers["clinic"].certificate)[1:-1].encode(),
        json.dumps(ssl.DER_cert_to_PEM_cert(damaged).rstrip("\n") + "\n")[
            1:-1
        ].encode(),
    )
    _, failures = server.call({"clinic": b"x"}, 9.0)
    assert failures == {"clinic": "its answer is not signed by clinic"}


def test_a_session_that_is_none_is_a_failure_of_its_site(network, server, signers):
    def tamper(site, data):
        binding, _ = unseal(signers[site], data, site)
        return seal(signers[site], binding, b"\xff" * 32)

    network.tamper = tamper
    found = server.call({"clinic": b"x"}, 9.0)
    assert found == ({}, {"clinic": "its session is invalid"})
