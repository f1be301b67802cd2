"""Restrictions of NVFlare's messages, for all processes of a federation.

NVFlare does more with a message than to receive it. It connects in clear text to an
address in it, although ad-hoc connections are off, and believes any name that answers
there. It writes parts of it to files in ``/tmp``. It requests objects that it refers
to. It ends the server's process of a job if one message cannot be read. It stores
statistics of all topics that senders have named, and all names and properties that they
had. Settings of a job may include files and addresses, unless they are JSON, and
replace those of the kit, whose folder is searched with all jobs in it. epifalcon needs
none of this. And NVFlare limits the size of a message, but neither the number of
unfinished messages, nor what arrives before their first part, nor connections, nor
finished messages that await repeated parts, nor frames: it reads more while the process
that they are for is slow or stopped, and stores answers for a sender that reads none
or confirms none, and finished messages as long as their parts may be repeated.
Nor does it limit what a message is decoded to: an empty list is one byte in a message
and 70 bytes in memory. And it writes names of commands to a file that has no limit.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.fuel.f3.cellnet import cell as nvflare_cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.cellnet.fqcn import FqcnInfo
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.connection import BytesAlike, Connection
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, StreamConnection
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm import conn_manager
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import HandshakeKeys
from nvflare.fuel.f3.sfm.sfm_conn import SfmConnection
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.f3.streaming.stream_utils import (
    CheckedExecutor,
    callback_thread_pool,
    stream_thread_pool,
)
from nvflare.fuel.sec.audit import EXCLUDED_ACTIONS, Auditor
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.fuel.utils.fobs import fobs, lobs
from nvflare.fuel.utils.fobs.datum import Datum, DatumManager

_MOST_UNFINISHED = 16
"""Unfinished messages of one sender; each occupies two threads."""
_MOST_UNCONFIRMED = 64
"""Messages to one receiver that it has not confirmed; each occupies at least 1 MB."""
_MOST_FINISHED = 64
"""Finished messages of one sender whose repeated pieces are recognised."""
_PIECE_BYTES = 2**20
"""Least size that a piece of a message counts as: that of NVFlare's own pieces."""
_MOST_CONNECTIONS = 16
"""Connections with one certificate: a site has one, and one for each of its jobs."""
_MOST_FRAMES = 64
"""Frames of one sender that are processed at the same time; more are not read."""
_MOST_SENDERS = 100
"""Senders whose frames all have a thread, should those of each wait for a slow job.

The same number of threads serves unfinished messages, of which NVFlare serves 64.
"""
_MOST_UNREAD = 2000
"""Frames that wait until a receiver reads them: many more than for large messages."""
_MOST_NAME_CHARACTERS = 200
_MOST_VALUES = 200_000
"""Values that a message is decoded to: the first of a run has 13 for each site."""
_MOST_HEADER_VALUES = 50_000
_MOST_DATUMS = 100
"""Parts of a message that NVFlare encodes one by one, as it does large bytes."""
_log = logging.getLogger(__name__)
_frames: dict[str, threading.BoundedSemaphore] = {}
_adding = threading.Lock()
_initialize = ConfigService.initialize
_handle_ack = TxTask.handle_ack
_start_task = TxTask.start_task_thread
_find_task = RxTask.find_or_create_task
_start_stream = RxTask._handle_new_stream
_add_connection = GrpcDriver.add_connection
_update_endpoint = ConnManager.update_endpoint
_send_frame = StreamConnection.send_frame
_shutdown = CheckedExecutor.shutdown
_add_datum = DatumManager.add_datum
_msgpack = fobs.msgpack


def restrict_messages() -> None:
    """Remove what epifalcon does not need, and limit unfinished messages."""
    CoreCell._add_adhoc_connector = _refuse
    lobs.get_datum_dir = lobs.get_dot_handler = _refuse
    fobs.msgpack = SimpleNamespace(packb=_msgpack.packb, unpackb=_decode)
    head = partial(_decode, most=_MOST_HEADER_VALUES)
    conn_manager.msgpack = SimpleNamespace(packb=_msgpack.packb, unpackb=head)
    DatumManager.add_datum = _limited_datum
    # Cells of the server's jobs end their process after some errors of a site.
    nvflare_cell._is_server_job_cell = lambda _: False
    RxTask.find_or_create_task = _limited_task
    RxTask._handle_new_stream = _start_and_release
    TxTask.handle_ack = _handle_own_ack
    TxTask.start_task_thread = _limited_start
    HistPool.record_value = CounterPool.increment = lambda *_, **__: None
    ConfigFactory._fmt2Loader = {
        ConfigFormat.JSON: ConfigFactory._fmt2Loader[ConfigFormat.JSON]
    }
    ConfigService.initialize = _search_kit
    GrpcDriver.add_connection = _limited_connection
    ConnManager.update_endpoint = _update_name
    ConnManager.process_frame = _process_frame
    threads = conn_manager.FRAME_THREAD_POOL_SIZE = _MOST_SENDERS * _MOST_FRAMES
    # Made on demand.
    stream_thread_pool._max_workers = callback_thread_pool._max_workers = threads
    StreamConnection.send_frame = _send_or_close
    CheckedExecutor.shutdown = _end_and_shutdown
    Auditor.add_event = _log_event
    Auditor.add_job_event = lambda *_, **__: ""


def _refuse(*_: object) -> None:
    raise ValueError("messages hold values only: no addresses, files or references")


def _decode(
    data: bytes,
    object_hook: Callable[[Any], Any] = lambda one: one,
    most: int = _MOST_VALUES,
    **more: object,
) -> object:
    """Decode a message; raise ``ValueError`` if it holds more than ``most`` values."""
    left = most

    def counted(values: Any) -> Any:  # noqa: ANN401
        nonlocal left
        left -= len(values) + 1
        if left < 0:
            raise ValueError(f"a message holds more than {most:,} values")
        return values

    return _msgpack.unpackb(
        data,
        object_hook=lambda values: object_hook(counted(values)),
        list_hook=counted,
        max_array_len=most,
        max_map_len=most,
        **more,
    )


def _limited_datum(manager: DatumManager, datum: Datum) -> None:
    if len(manager.datums) >= _MOST_DATUMS:
        raise ValueError(f"a message holds more than {_MOST_DATUMS} datums")
    _add_datum(manager, datum)


def _handle_own_ack(task: TxTask, message: Message) -> None:
    """Handle an answer to a sent message, which others than its receiver could end."""
    if message.get_header(MessageHeaderKey.ORIGIN) == task.target:
        _handle_ack(task, message)


def _limited_start(task: TxTask, handler: Callable[[Any], Any]) -> None:
    """Send a message, unless its receiver has many that it did not confirm.

    NVFlare repeats answers for a minute, also for a sender that confirms none.
    """
    receiver = FqcnInfo(task.target).root
    with ByteStreamer.map_lock:
        targets = [one.target for one in ByteStreamer.tx_task_map.values()]
    if [FqcnInfo(one).root for one in targets].count(receiver) <= _MOST_UNCONFIRMED:
        _start_task(task, handler)
    else:
        # Its memory would stay until the next collection of cycles.
        task.buffer = memoryview(b"")
        task.stop(StreamError(f"{receiver} confirms no messages"))


def _search_kit(
    section_files: dict[str, str], config_path: list[str], **more: object
) -> None:
    """Let NVFlare search settings in the folders of a kit that hold them."""
    kit = [Path(*parts) for parts in product(config_path, ("local", "startup"))]
    found = [str(one) for one in kit if one.is_dir()]
    _initialize(section_files, found or config_path, **more)


def _limited_task(message: Message, cell: Any) -> RxTask | None:  # noqa: ANN401
    """Return the task of a piece; if its sender has too many, end them all.

    Of finished ones, which await repeated pieces, only the newest stay: each has a
    thread, for as long as its sender requests.
    """
    origin = message.get_header(MessageHeaderKey.ORIGIN)
    key = origin, message.get_header(StreamHeaderKey.STREAM_ID)
    sender = FqcnInfo(origin).root
    with RxTask.map_lock:
        known = dict(RxTask.rx_task_map)
    own = [task for task in known.values() if FqcnInfo(task.origin).root == sender]
    unfinished = [task for task in own if not task.completed]
    for task in [task for task in own if task.completed][:-_MOST_FINISHED]:
        task._remove_task()
    held = len(message.payload or b"") + sum(map(_held_bytes, unfinished))
    count = len(unfinished) + (key not in known)
    # One message that came too late may still arrive beside the next.
    if held <= 2 * CommConfigurator().get_streaming_max_blob_size() and (
        count <= _MOST_UNFINISHED
    ):
        return _find_task(message, cell)
    for task in unfinished:
        task.stop(StreamError(f"too many unfinished messages of {sender}"))
    return None


def _start_and_release(task: RxTask, message: Message) -> None:
    """Start to receive a message; release it once its receiver has it."""
    _start_stream(task, message)
    received = task.stream_future

    def release() -> None:
        if received.error is None:
            task.stream_future = None

    received.add_done_callback(release)


def _end_and_shutdown(
    pool: CheckedExecutor, wait: bool = True, *, cancel_futures: bool = False
) -> None:
    """Shut down threads without waiting for the rest of unfinished messages."""
    _shutdown(pool, wait=False, cancel_futures=cancel_futures)
    with RxTask.map_lock:
        known = list(RxTask.rx_task_map.values())
    for task in known:
        if not task.completed:
            task.stop(StreamError("this process ends"), notify=False)
    _shutdown(pool, wait=wait)


def _held_bytes(task: RxTask) -> int:
    later = [len(payload or b"") for _, payload in list(task.out_seq_chunks.values())]
    received: int = max(task.received_offset, _PIECE_BYTES * task.next_seq)
    return received + sum(max(size, _PIECE_BYTES) for size in later)


def _limited_connection(driver: GrpcDriver, connection: Connection) -> None:
    """Add a connection, unless its certificate has many."""
    owner = _owner(connection)
    with _adding:
        others = [*map(_owner, list(driver.connections.values()))].count(owner)
        if others >= _MOST_CONNECTIONS:
            raise ConnectionError(f"too many connections of {owner}")
        _add_connection(driver, connection)


def _owner(connection: Connection) -> object:
    return connection.get_conn_properties().get(DriverParams.PEER_CN.value)


def _update_name(
    manager: ConnManager, connection: SfmConnection, data: dict[str, Any]
) -> None:
    """Give a connection its name; refuse a second or long one, and drop all else."""
    name = data[HandshakeKeys.ENDPOINT_NAME]
    if connection.sfm_endpoint is not None or len(name) > _MOST_NAME_CHARACTERS:
        connection.conn.close()
        raise ConnectionError("a connection has one short name")
    _update_endpoint(manager, connection, {HandshakeKeys.ENDPOINT_NAME: name})


def _process_frame(
    manager: ConnManager, connection: SfmConnection, frame: BytesAlike
) -> None:
    """Process a frame in another thread; wait if its sender has many, and read none."""
    owner = _owner(connection.conn)
    known = vars(connection) if owner is None else _frames
    turn = known.setdefault(f"{owner}", threading.BoundedSemaphore(_MOST_FRAMES))
    turn.acquire()
    try:
        task = manager.process_frame_task, connection, frame
        manager.frame_mgr_executor.submit(*task).add_done_callback(
            lambda _: turn.release()
        )
    except RuntimeError:  # The process ends.
        turn.release()


def _send_or_close(connection: StreamConnection, frame: BytesAlike) -> None:
    """Send a frame; close the connection if its receiver left many unread."""
    if connection.oq.q.qsize() >= _MOST_UNREAD:
        connection.close()
        raise ConnectionError("a receiver does not read")
    _send_frame(connection, frame)


def _log_event(_: Auditor, user: str, action: str, *_more: str, **_named: str) -> str:
    """Write a command to the log, whose lines and files have a limit."""
    if action not in EXCLUDED_ACTIONS:
        _log.info("command of %s: %s", user, action)
    return ""
