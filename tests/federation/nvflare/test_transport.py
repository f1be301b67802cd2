"""Calls by site, all at once: answers, failures in words, nothing of a site's own."""

import threading
import time

import pytest
from nvflare.collab import CollabCallError
from nvflare.collab.api.exceptions import RunAborted

from epifalcon.errors import SettingsError, StoppedError
from epifalcon.federation.nvflare.transport import GONE, CollabTransport, LostSites

LIMIT = 30.0


class Proxy:
    """Stands for NVFlare's proxy of a site: called with a limit, then with a call."""

    def __init__(self, name, answer):
        self.name = name
        self.answer = answer

    def __call__(self, timeout):
        assert timeout > 0
        return self


def transport_of(lost=None, stopped=lambda: False, **answers):
    proxies = [Proxy(name, answer) for name, answer in answers.items()]
    return CollabTransport(proxies, lost or LostSites(), stopped)


def raising(error):
    def answer(_):
        raise error

    return answer


def test_each_site_gets_its_own_call():
    transport = transport_of(b=lambda call: b"b" + call, a=lambda call: b"a" + call)
    assert transport.sites == ("a", "b")
    answers, failed = transport.ask({"a": b"1", "b": b"2"}, LIMIT)
    assert answers == {"a": b"a1", "b": b"b2"}
    assert failed == {}
    assert transport.ask({"b": b"3"}, LIMIT) == ({"b": b"b3"}, {})
    assert transport.ask({}, LIMIT) == ({}, {})


def test_calls_go_out_at_the_same_time():
    # Nobody passes before all have arrived, so calls in turn would never end.
    together = threading.Barrier(5, timeout=LIMIT)

    def answer(call):
        together.wait()
        return call

    sites = {f"s{number}": answer for number in range(5)}
    answers, _ = transport_of(**sites).ask(dict.fromkeys(sites, b"x"), LIMIT)
    assert answers == dict.fromkeys(sites, b"x")


def test_a_late_site_fails_and_the_others_are_kept():
    go_on = threading.Event()
    transport = transport_of(a=lambda _: b"ok", late=lambda _: go_on.wait(LIMIT))
    answers, failed = transport.ask({"a": b"", "late": b""}, 0.2)
    go_on.set()
    assert answers == {"a": b"ok"}
    assert failed == {"late": "no answer within 0.2 s"}


def test_a_site_that_is_lost_during_a_call_fails_before_the_limit():
    go_on, lost = threading.Event(), LostSites()
    transport = transport_of(lost, a=lambda _: b"ok", gone=lambda _: go_on.wait(LIMIT))
    threading.Timer(0.2, lost.add, ["gone"]).start()
    start = time.monotonic()
    answers, failed = transport.ask({"a": b"", "gone": b""}, LIMIT)
    go_on.set()
    assert time.monotonic() - start < LIMIT / 2
    assert answers == {"a": b"ok"}
    assert failed == {"gone": GONE}


def test_a_lost_site_is_not_called_until_it_is_back():
    lost, calls = LostSites(), []
    transport = transport_of(lost, a=lambda call: calls.append(call) or b"ok")
    lost.add("a")
    assert transport.ask({"a": b"1"}, LIMIT) == ({}, {"a": GONE})
    assert calls == []
    lost.discard("a")
    assert transport.ask({"a": b"2"}, LIMIT) == ({"a": b"ok"}, {})


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (TimeoutError("SECRET"), "no answer within 30 s"),
        ("remote call returned rc='target_unreachable'", GONE),
        ("remote call returned rc='comm_error'", "the connection broke"),
        ("SECRET", "the call failed (str)"),
    ],
)
def test_nvflares_reasons_become_words_without_the_sites_text(cause, told):
    error = CollabCallError("a", "answer", cause, remote_traceback="SECRET")
    assert transport_of(a=raising(error)).ask({"a": b""}, LIMIT) == ({}, {"a": told})


def test_what_is_not_bytes_is_refused():
    transport = transport_of(a=lambda _: [1], b=lambda _: "ValueError")
    _, failed = transport.ask({"a": b"", "b": b""}, LIMIT)
    assert failed == {
        "a": "the site sent list, expected bytes",
        "b": "the site failed with ValueError",
    }


def test_a_stopped_job_asks_nobody():
    calls = []
    transport = transport_of(stopped=lambda: True, a=calls.append)
    with pytest.raises(StoppedError):
        transport.ask({"a": b""}, LIMIT)
    assert calls == []


def test_a_job_that_is_stopped_during_a_call_stops():
    stop, go_on = threading.Event(), threading.Event()
    transport = transport_of(stopped=stop.is_set, a=lambda _: go_on.wait(LIMIT))
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(StoppedError):
        transport.ask({"a": b""}, LIMIT)
    go_on.set()
    with pytest.raises(StoppedError):
        transport_of(a=raising(RunAborted())).ask({"a": b""}, LIMIT)


def test_a_name_that_is_no_site_is_refused():
    with pytest.raises(SettingsError, match="'b'"):
        transport_of(a=bytes).ask({"b": b""}, LIMIT)
