"""What is left of NVFlare's messages; over real connections in test_federation."""

import pytest
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum

from epifalcon.federation.nvflare import messaging

MB = 2**20


class Cell:
    """A cell whose errors go nowhere."""

    def fire_and_forget(self, *_, **__):
        return {}


@pytest.fixture(autouse=True)
def restricted(monkeypatch):
    for owner, name in (
        (messaging.nvflare_cell, "_is_server_job_cell"),
        (CoreCell, "_add_adhoc_connector"),
        (lobs, "get_datum_dir"),
        (lobs, "get_dot_handler"),
        (RxTask, "find_or_create_task"),
        (RxTask, "rx_task_map"),
    ):
        monkeypatch.setattr(owner, name, vars(owner)[name])
    RxTask.rx_task_map = {}
    # Read from the kit in its processes; here NVFlare's default.
    limit = "get_streaming_max_blob_size"
    monkeypatch.setattr(messaging.CommConfigurator, limit, lambda _: 10 * MB)
    messaging.restrict_messages()


def receive(stream, sequence, size, origin="clinic"):
    """Pass on one piece; return True if it was accepted."""
    headers = {
        MessageHeaderKey.ORIGIN: origin,
        StreamHeaderKey.STREAM_ID: stream,
        StreamHeaderKey.SEQUENCE: sequence,
    }
    message = Message(headers, bytes(size))
    task = RxTask.find_or_create_task(message, Cell())
    if task is not None:
        task.process_chunk(message)
    return task is not None


def test_a_sender_cannot_fill_the_memory_with_pieces_before_the_first():
    accepted = [receive(7, number, 5 * MB) for number in range(1, 9)]
    assert accepted == [True] * 4 + [False] * 4
    assert receive(7, 0, MB, "school")


def test_small_pieces_count_as_large_ones():
    accepted = [receive(7, number, 1) for number in range(1, 40)]
    assert sum(accepted) == 20


def test_a_sender_has_few_unfinished_messages_also_under_several_names():
    names = ["clinic", "clinic.job", "clinic.other"] * 10
    accepted = [receive(n, 0, 10, name) for n, name in enumerate(names)]
    assert sum(accepted) == 16
    assert receive(1, 0, 10, "school.job")


def test_finished_messages_do_not_count():
    for number in range(40):
        assert receive(number, 0, 10)
        RxTask.rx_task_map["clinic", number].stop()


def test_a_message_holds_neither_files_nor_references():
    plain = {"call": bytes(11 * MB)}
    assert lobs.load_from_bytes(lobs.dump_to_bytes(plain)) == plain
    for part in (Datum.file_datum(__file__), Datum.text_datum("{}", 3)):
        message = lobs.dump_to_bytes({"part": part})
        with pytest.raises(ValueError, match="values only"):
            lobs.load_from_bytes(message)
