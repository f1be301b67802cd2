"""Calls in one frame: only the server's are answered, and what fails is streamed."""

from types import SimpleNamespace

import pytest
from nvflare.collab import CollabCallError
from nvflare.collab.runtime.cell_dispatcher import CellDispatcher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message

from epifalcon.federation.nvflare import frames
from epifalcon.federation.nvflare.frames import FrameDispatcher, answer_frames

SERVER, SITE = "server.job", "clinic-a.job"
LARGE = bytes(frames.MOST_BYTES + 1)


class Line:
    """Stands for the cells at both ends; ``lose`` says what becomes of a reply."""

    def __init__(self, answer, origin=SERVER):
        self.core_cell = self
        self.asked, self.waited, self.lose = [], [], lambda reply: reply
        self._origin = origin
        answer_frames(self, SERVER, self._noting(answer))

    def _noting(self, answer):
        def noted(call):
            self.asked.append(call)
            return answer(call)

        return noted

    def register_request_cb(self, channel, topic, answered):
        self._place, self._answered = (channel, topic), answered

    def send_request(self, channel, topic, target, request, timeout, optional):
        assert (channel, topic) == self._place
        assert (target, optional) == (SITE, True)
        self.waited.append(timeout)
        # As frames come from a socket.
        sent = Message({MessageHeaderKey.ORIGIN: self._origin}, request.payload)
        if isinstance(sent.payload, bytes):
            sent.payload = bytearray(sent.payload)
        return self.lose(self._answered(sent))


@pytest.fixture
def dispatcher_to(monkeypatch):
    monkeypatch.setattr(CellDispatcher, "_call_target", lambda *_, **__: "streamed")

    def made(line):
        signal = executor = manager = engine = None
        return FrameDispatcher(manager, engine, "server", line, SITE, signal, executor)

    return made


def ask(dispatcher, call, timeout=600.0):
    option = SimpleNamespace(timeout=timeout)
    return dispatcher._call_target(None, "clinic-a", option, "answer", call=call)


def test_a_call_and_its_answer_travel_in_a_frame_each(dispatcher_to):
    line = Line(lambda call: b"to " + call)
    found = ask(dispatcher_to(line), b"hello")
    assert (found, type(found)) == (b"to hello", bytes)
    assert line.asked == [b"hello"]
    assert ask(dispatcher_to(Line(lambda _: "ValueError")), b"x") == "ValueError"
    just = LARGE[1:]
    assert ask(dispatcher_to(Line(lambda call: call)), just) == just


def test_what_is_too_large_for_a_frame_is_streamed(dispatcher_to):
    line = Line(lambda _: LARGE)
    assert ask(dispatcher_to(line), b"x") == "streamed"
    assert line.asked == [b"x"]
    assert ask(dispatcher_to(line), LARGE) == "streamed"
    assert line.asked == [b"x"]


@pytest.mark.parametrize("origin", ["clinic-b.job", "server", "server.other", None])
def test_only_the_server_of_the_job_is_answered(dispatcher_to, origin):
    line = Line(lambda call: call, origin)
    assert ask(dispatcher_to(line), b"x") == "streamed"
    assert line.asked == []


def test_an_answer_that_is_no_bytes_is_not_taken(dispatcher_to):
    line = Line(lambda call: call)
    line.lose = lambda _: Message({}, {"not": "bytes"})
    assert ask(dispatcher_to(line), b"x") == "streamed"


def test_no_object_is_taken_for_a_call():
    line = Line(lambda call: call)
    reply = line.send_request(
        "epifalcon", "answer", SITE, Message({}, {"a": 1}), 1.0, True
    )
    assert reply.get_header(MessageHeaderKey.RETURN_CODE) != ReturnCode.OK
    assert line.asked == []


@pytest.mark.parametrize("code", [ReturnCode.COMM_ERROR, ReturnCode.TARGET_UNREACHABLE])
def test_where_no_frame_comes_through_a_stream_is_tried(dispatcher_to, code):
    line = Line(lambda call: call)
    line.lose = lambda _: Message({MessageHeaderKey.RETURN_CODE: code})
    dispatcher = dispatcher_to(line)
    assert ask(dispatcher, b"x") == "streamed"
    assert dispatcher.patience == FrameDispatcher.patience


def test_a_lost_answer_is_asked_for_as_a_stream_each_time_later(dispatcher_to):
    line = Line(lambda call: call)
    line.lose = lambda _: Message({MessageHeaderKey.RETURN_CODE: ReturnCode.TIMEOUT})
    dispatcher, first = dispatcher_to(line), FrameDispatcher.patience
    assert [ask(dispatcher, b"x") for _ in range(3)] == ["streamed"] * 3
    assert line.waited == [first, 2 * first, 4 * first]
    # There is no time left for a stream: the site is late.
    with pytest.raises(CollabCallError) as caught:
        ask(dispatcher, b"x", timeout=3.0)
    assert isinstance(caught.value.cause, TimeoutError)
    assert line.waited[-1] == 3.0
