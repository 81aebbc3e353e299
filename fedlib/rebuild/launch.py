"""Ask ``forks`` for a kernel and stay until it ends: what Jupyter starts in its place.

    python -I -S launch.py SOCKET CONNECTION_FILE

A script that imports nothing but the standard library, so that it starts at once. It
passes signals on; either of the two that ends takes the other with it.
"""

import json
import os
import signal
import socket
import sys


def main(place: str, connection: str) -> None:
    """Begin a kernel in this folder and with these environment variables."""
    with socket.socket(socket.AF_UNIX) as talk:
        talk.connect(place)
        asked = json.dumps([connection, os.getcwd(), dict(os.environ)])
        talk.sendall(f"{asked}\n".encode())
        pid = int(talk.recv(32))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda caught, _: os.kill(pid, caught))
        while talk.recv(1):
            continue


if __name__ == "__main__":
    main(*sys.argv[1:])
