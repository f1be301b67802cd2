"""What is left of NVFlare's messages; over real connections in test_federation."""

import threading
import time
import tracemalloc
import uuid
from types import SimpleNamespace

import pytest
from nvflare.collab.api.app import ClientApp
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.communicator import Communicator, Mode, driver_mgr
from nvflare.fuel.f3.drivers.grpc.qq import QQ
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, StreamConnection
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.blob_streamer import BlobHandler, BlobStream
from nvflare.fuel.f3.streaming.byte_receiver import ByteReceiver, RxStream, RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.f3.streaming.stream_utils import (
    CheckedExecutor,
    callback_thread_pool,
    stream_thread_pool,
)
from nvflare.fuel.sec.audit import Auditor
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.fuel.utils.fobs import fobs, lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager

from epifalcon.federation.nvflare import messaging
from epifalcon.federation.nvflare.components import UnixDriver
from epifalcon.federation.nvflare.endpoints import SiteEndpoint
from epifalcon.federation.nvflare.processes import free_ports
from epifalcon.federation.nvflare.provisioning import Deployment, provision
from tests.federation.nvflare.live import PATIENCE, until

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
        (fobs, "msgpack"),
        (conn_manager, "msgpack"),
        (DatumManager, "add_datum"),
        (RxTask, "find_or_create_task"),
        (RxTask, "_handle_new_stream"),
        (TxTask, "handle_ack"),
        (TxTask, "start_task_thread"),
        (ByteStreamer, "tx_task_map"),
        (RxTask, "rx_task_map"),
        (HistPool, "record_value"),
        (CounterPool, "increment"),
        (ConfigFactory, "_fmt2Loader"),
        (ConfigService, "initialize"),
        (ConfigService, "_config_path"),
        (GrpcDriver, "add_connection"),
        (ConnManager, "update_endpoint"),
        (ConnManager, "process_frame"),
        (StreamConnection, "send_frame"),
        (CheckedExecutor, "shutdown"),
        (Auditor, "add_event"),
        (Auditor, "add_job_event"),
        (stream_thread_pool, "_max_workers"),
        (callback_thread_pool, "_max_workers"),
    ):
        # The base class has some of them.
        monkeypatch.setattr(owner, name, vars(owner).get(name, getattr(owner, name)))
    RxTask.rx_task_map, ByteStreamer.tx_task_map = {}, {}
    monkeypatch.setattr(messaging, "_frames", {})
    ConfigService._config_path = []
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


def test_nobody_ends_a_message_that_is_sent_to_another():
    target = "school.job"
    empty = SimpleNamespace(get_size=lambda: 0, close=lambda: None)
    task = TxTask(Cell(), 1, "", "", target, {}, empty, False, False, False)
    for origin, ended in (("clinic.job", False), (target, True)):
        headers = {
            MessageHeaderKey.ORIGIN: origin,
            StreamHeaderKey.STREAM_ID: task.sid,
            StreamHeaderKey.ERROR_MSG: "no",
        }
        task.handle_ack(Message(headers))
        assert task.stream_future.done() == ended


def test_answers_that_their_receiver_does_not_confirm_are_few():
    class Sender(Cell):
        my_info = SimpleNamespace(fqcn="server.job")
        add_error_handler = register_request_cb = Cell.fire_and_forget

    streamer = ByteStreamer(Sender())
    answers = {
        name: [
            streamer.send("", "", name, {}, BlobStream(b"1", {}), reliable=True)
            for _ in range(40)
        ]
        for name in ("clinic.job", "clinic.other", "school.job")
    }
    ended = {name: [one.done() for one in made] for name, made in answers.items()}
    assert ended.pop("clinic.other") == [False] * 24 + [True] * 16
    waiting = list(ByteStreamer.tx_task_map.values())
    assert len(waiting) == 64 + 40
    assert not any(map(any, ended.values()))
    for task in waiting:
        task.cancel()


def test_unfinished_messages_of_several_senders_hold_up_no_other():
    class Receiver(Cell):
        my_info = SimpleNamespace(fqcn="server.job")
        register_request_cb = Cell.fire_and_forget

    def received(future):
        future.result()
        done.set()

    done, receiver = threading.Event(), ByteReceiver(Receiver())
    receiver.register_callback("", "", BlobHandler(received).handle_blob_cb)
    kinds = [(f"site-{n}", StreamDataType.CHUNK) for n in range(10) for _ in range(16)]
    for number, (origin, kind) in enumerate([*kinds, ("clinic", StreamDataType.FINAL)]):
        headers = {
            MessageHeaderKey.ORIGIN: origin,
            StreamHeaderKey.STREAM_ID: number,
            StreamHeaderKey.CHANNEL: "",
            StreamHeaderKey.TOPIC: "",
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.DATA_TYPE: kind,
        }
        receiver._data_handler(Message(headers, b"1"))
    arrived = done.wait(10)
    for task in [*RxTask.rx_task_map.values()]:
        task.stop(StreamError("the end"), notify=False)
    assert arrived


def test_unfinished_messages_do_not_hold_up_the_end_of_a_process():
    assert receive(1, 0, 10)
    task, pool = RxTask.rx_task_map["clinic", 1], CheckedExecutor(1)
    reading = pool.submit(RxStream(task).read, 10), pool.submit(RxStream(task).read, 10)
    end = threading.Thread(target=pool.shutdown, daemon=True)
    end.start()
    end.join(10)
    assert not end.is_alive()
    assert "process ends" in str(reading[1].exception(1))


def test_finished_messages_do_not_count():
    for number in range(40):
        assert receive(number, 0, 10)
        RxTask.rx_task_map["clinic", number].stop()


def test_finished_messages_that_await_repeated_pieces_are_few():
    before = threading.active_count()
    for number in range(300):
        assert receive(number, 0, 10)
        task = RxTask.rx_task_map["clinic", number]
        task.reliable, task.completed_task_ttl = True, 600.0
        task.stop()
    until(lambda: threading.active_count() - before <= 65, "the threads to end")
    newest = [number for _, number in RxTask.rx_task_map]
    assert newest == [*range(300 - len(newest), 300)]
    assert 60 < len(newest) < 70
    for task in [*RxTask.rx_task_map.values()]:
        task._remove_task()


@pytest.mark.parametrize("encoding", [None, Encoding.FOBS])
def test_finished_messages_that_await_repeated_pieces_are_released(encoding):
    def received(future):
        assert sum(map(len, future.result())) if encoding else len(future.result())
        done.set()

    handle, done = BlobHandler(received).handle_blob_cb, threading.Event()
    tracemalloc.start()
    for number in range(30):
        headers = {
            MessageHeaderKey.ORIGIN: "clinic",
            StreamHeaderKey.STREAM_ID: number,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.SIZE: MB,
            StreamHeaderKey.RELIABLE: True,
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL,
            StreamHeaderKey.PAYLOAD_ENCODING: encoding,
        }
        message = Message(headers, bytes(MB))
        task = RxTask.find_or_create_task(message, Cell())
        assert task.process_chunk(message)
        handle(task.stream_future, RxStream(task), False)
        assert done.wait(PATIENCE)
        done.clear()
        assert not task.process_chunk(message)
    del message
    until(lambda: tracemalloc.get_traced_memory()[0] < 8 * MB, "them to be released")
    tracemalloc.stop()
    assert len(RxTask.rx_task_map) == 30
    for task in [*RxTask.rx_task_map.values()]:
        task._remove_task()


def test_a_message_holds_neither_files_nor_references():
    plain = {"call": bytes(11 * MB)}
    assert lobs.load_from_bytes(lobs.dump_to_bytes(plain)) == plain
    for part in (Datum.file_datum(__file__), Datum.text_datum("{}", 3)):
        message = lobs.dump_to_bytes({"part": part})
        with pytest.raises(ValueError, match="values only"):
            lobs.load_from_bytes(message)


def test_settings_with_includes_are_not_read(tmp_path):
    (tmp_path / "config.conf").write_text('include file("/etc/hostname")\na = 1\n')
    assert ConfigFactory.load_config("config.json", [str(tmp_path)]) is None
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert ConfigFactory.load_config("config.json", [str(tmp_path)]).to_dict() == {
        "a": 1
    }


def test_a_job_replaces_no_settings_of_the_kit(tmp_path):
    for number, folder in enumerate(("local", "startup", *map(str, range(20)))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "comm_config.json").write_text(f'{{"n": {number}}}')
    ConfigService.initialize(section_files={}, config_path=[str(tmp_path)])
    path = ConfigService._config_path
    assert ConfigService.load_config_dict("comm_config.json", path) == {"n": 0}


def test_commands_of_others_are_logged_and_fill_no_other_file(tmp_path, caplog):
    auditor = Auditor(str(tmp_path / "audit.log"))
    with caplog.at_level("INFO"):
        auditor.add_event(user="a", action="x\n" * 9999, ref="")
    auditor.add_job_event(job_id="b", task_name="x" * 9999)
    auditor.close()
    assert "command of a: x" in caplog.text
    assert (tmp_path / "audit.log").stat().st_size == 0


def test_topics_of_others_are_not_stored():
    counters, times = CounterPool("n", "", ["received"]), HistPool("n", "", [1, 2], "s")
    counters.increment("a topic", "received")
    times.record_value("a topic", 1.0)
    assert (counters.cat_counters, times.cat_bins) == ({}, {})


def connection(number, owner):
    properties = {"peer_cn": owner}
    return SimpleNamespace(
        name=str(number),
        get_conn_properties=lambda: properties,
        close=lambda: closed.append(number),
    )


closed = []


def test_a_certificate_has_few_connections():
    driver = GrpcDriver()
    driver.conn_monitor = SimpleNamespace(state_change=lambda _: None)
    for number in range(16):
        driver.add_connection(connection(number, "clinic"))
    with pytest.raises(ConnectionError, match="too many connections of clinic"):
        driver.add_connection(connection(16, "clinic"))
    driver.add_connection(connection(17, "school"))
    driver.close_connection(connection(3, "clinic"))
    driver.add_connection(connection(18, "clinic"))


def test_a_connection_has_one_short_name_and_nothing_else_is_stored():
    manager = ConnManager(SimpleNamespace(name="server"))
    for number, name in enumerate(("clinic", "x" * 201)):
        one = connection(number, "clinic")
        one.connector = SimpleNamespace(params={})
        named = SimpleNamespace(
            conn=one, sfm_endpoint=None, get_name=str, local_endpoint=None
        )
        for again in range(2):
            data = {"endpoint_name": f"{name}{again or ''}", "more": bytes(MB)}
            try:
                manager.update_endpoint(named, data)
            except ConnectionError:
                assert number in closed
    (found,) = manager.sfm_endpoints.values()
    assert (found.endpoint.name, found.endpoint.properties) == ("clinic", {})


def connection_of(owner, name):
    properties = {"peer_cn": owner} if owner else {}
    conn = SimpleNamespace(get_conn_properties=lambda: properties)
    return SimpleNamespace(conn=conn, get_name=lambda: name)


def test_frames_of_a_sender_are_not_read_while_many_are_processed():
    manager, ready = ConnManager(SimpleNamespace(name="server")), threading.Event()
    done = []

    def process(connection, frame):
        ready.wait(20)
        done.append((connection.get_name(), frame))

    manager.process_frame_task = process

    def read(connection):
        for number in range(200):
            manager.process_frame(connection, number)

    # A site with two connections, another site, and a job without a certificate.
    connections = [
        connection_of("clinic", "1"),
        connection_of("clinic", "2"),
        connection_of("school", "3"),
        connection_of(None, "4"),
    ]
    readers = [threading.Thread(target=read, args=(one,)) for one in connections]
    for reader in readers:
        reader.start()
    queue = manager.frame_mgr_executor._work_queue

    def held():
        return queue.qsize() + len(manager.frame_mgr_executor._threads)

    until(lambda: held() == 3 * 64, "the readers to wait")
    time.sleep(0.2)
    assert held() == 3 * 64
    ready.set()
    for reader in readers:
        reader.join(60)
    until(lambda: len(done) == 800, "all frames to be processed")
    manager.frame_mgr_executor.shutdown()


EMPTY = {"list": b"\x90", "map": b"\x80"}
"""Values of one byte in a message and about 70 bytes in memory."""


@pytest.mark.parametrize("one", EMPTY.values(), ids=EMPTY.keys())
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_message_is_not_decoded_to_many_times_its_size(one, nested):
    inner = b"\xdc\x4e\x20" + one * 20_000
    many = b"\xdc\x01\x00" + inner * 256 if nested else _many(one, 2**20)
    message = lobs.HEADER_STRUCT.pack(lobs.MARKER_MAIN, 0, len(many)) + many
    hello = SimpleNamespace(header_len=0), bytes(PREFIX_LEN) + many
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"more than 200,000|exceeds max"):
        lobs.load_from_bytes(message)
    with pytest.raises(ValueError, match=r"more than 50,000|exceeds max"):
        ConnManager.get_dict_payload(*hello)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * MB


def _many(one, count):
    return b"\xdd" + count.to_bytes(4, "big") + one * count


def test_a_message_has_few_datums():
    def read(count):
        datums = {str(n): Datum.blob_datum(b"1") for n in range(count)}
        return lobs.load_from_bytes(b"".join(_sections(datums.values())))

    assert read(100) == 1
    with pytest.raises(ValueError, match="more than 100 datums"):
        read(101)


def _sections(datums):
    yield lobs.HEADER_STRUCT.pack(lobs.MARKER_MAIN, 0, 1) + b"\x01"
    for one in datums:
        yield lobs.HEADER_STRUCT.pack(lobs.MARKER_DATUM_BLOB, 0, 17)
        yield uuid.UUID(one.datum_id).bytes + one.value


def test_large_messages_are_decoded():
    sent = {"kwargs": {"call": bytes(11 * MB)}, "sites": ["clinic"] * 10_000}
    assert lobs.load_from_bytes(lobs.dump_to_bytes(sent)) == sent


def test_a_run_may_have_10_000_sites():
    own = ClientApp(SiteEndpoint("falcon", "one")).get_collab_interface()
    sent = {"client_interfaces": {f"site-{one}": own for one in range(10_000)}}
    assert lobs.load_from_bytes(lobs.dump_to_bytes(sent)) == sent


def credentials(kit, role):
    names = {"ca_cert": "rootCA.pem"}
    names |= {f"{role}_cert": f"{role}.crt", f"{role}_key": f"{role}.key"}
    found = {key: f"{kit / 'startup' / name}" for key, name in names.items()}
    return {**found, "connection_security": "mtls"}


class Party:
    """What connects to the server under a name, and reads nothing until ``ready``."""

    def __init__(self, name, url, kit=None):
        self.name, self.sent, self.read = name, 0, []
        self.ready = threading.Event()
        own = credentials(kit, "client") if kit else {}
        self.link = Communicator(Endpoint(name, conn_props=own))
        self.link.register_message_receiver(CoreCell.APP_ID, self)
        self.link.add_connector(url, Mode.ACTIVE, secure=kit is not None)
        self.link.start()
        until(lambda: self.link.find_endpoint("server"), "the connection")

    def process_message(self, _endpoint, _connection, _app_id, message):
        self.ready.wait(PATIENCE)
        self.read.append(message.headers[MessageHeaderKey.ORIGIN])

    def send(self, target, count=1):
        headers = {
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.ORIGIN: self.name,
            MessageHeaderKey.DESTINATION: target,
            MessageHeaderKey.CHANNEL: "channel",
            MessageHeaderKey.TOPIC: "topic",
        }
        (connection,) = self.link.conn_manager.sfm_conns.values()
        server = self.link.find_endpoint("server")
        for _ in range(count):
            # A sender whose own memory is limited: it waits until its frames leave.
            until(lambda: connection.conn.oq.q.qsize() < 4, "a frame to leave")
            self.link.send(server, CoreCell.APP_ID, Message(headers, bytes(2**18)))
            self.sent += 1


def test_messages_for_a_stopped_job_do_not_fill_the_servers_memory(
    tmp_path, monkeypatch
):
    timeout = "get_streaming_send_timeout"
    monkeypatch.setattr(messaging.CommConfigurator, timeout, lambda *_: 2 * PATIENCE)
    monkeypatch.setattr(CoreCell, "ALL_CELLS", {})
    monkeypatch.chdir(tmp_path)
    driver_mgr.register(UnixDriver)
    sites, (port,) = ("clinic", "school", "phones"), free_ports(1)
    named = Deployment(project="town", host="localhost", sites=sites)
    kits, url = provision(named, tmp_path / "kits"), f"grpc://localhost:{port}"
    own = credentials(kits["server"], "server")
    server = CoreCell("server", url, True, own)
    answered = threading.Event()
    server.register_request_cb("channel", "topic", lambda _: answered.set())
    server.start()
    _, inside, _ = server.communicator.start_listener("unix", {})
    job = Party("server.job", inside)
    clinic, school, phones = (Party(f"{one}.spy", url, kits[one]) for one in sites)
    floods = [
        threading.Thread(target=one.send, args=("server.job", 500), daemon=True)
        for one in (clinic, school)
    ]
    for flood in floods:
        flood.start()

    def stalled():
        before = clinic.sent, school.sent
        time.sleep(1.0)
        return before == (clinic.sent, school.sent) and min(before) >= 64

    until(stalled, "the floods to end, or not to be read")
    # The rest is not read. Besides frames of the server, those of connections count.
    assert max(clinic.sent, school.sent) < 300
    phones.send("server")
    assert answered.wait(PATIENCE)
    job.ready.set()
    for flood in floods:
        flood.join(PATIENCE)
    until(lambda: len(job.read) == 1000, "all messages to arrive")
    for one in (job.link, clinic.link, school.link, phones.link, server):
        one.stop()


def test_a_receiver_that_reads_nothing_loses_its_connection():
    connection = StreamConnection(QQ(), None, {}, "SERVER")
    for _ in range(2000):
        connection.send_frame(b"pong")
    with pytest.raises(ConnectionError, match="does not read"):
        connection.send_frame(b"pong")
    assert connection.closing
