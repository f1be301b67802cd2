"""For processes under test: no connection leaves this machine.

Python runs this file at every start where its folder is on the path. A connection
to anywhere but loopback is refused and written down. A datagram socket that is
"connected" sends nothing: NVFlare asks the system so for the machine's own address.
"""

import os
import socket
import sys


def _watch(event: str, args: tuple) -> None:
    if event not in {"socket.connect", "socket.sendto"}:
        return
    connection, address = args[0], args[1]
    if not isinstance(address, tuple) or _inside(str(address[0])):
        return
    silent = event == "socket.connect" and connection.type == socket.SOCK_DGRAM
    if not silent:
        with open(os.environ["EPIFALCON_CONNECTIONS"], "a") as file:
            file.write(f"{address}\n")
    raise OSError(f"no connection to {address} in a test")


def _inside(host: str) -> bool:
    return host in {"localhost", "::1", "0.0.0.0"} or host.startswith("127.")


if "EPIFALCON_CONNECTIONS" in os.environ:
    sys.addaudithook(_watch)
