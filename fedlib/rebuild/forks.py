"""Kernels that begin with their imports done: copies of one process that did them.

    python -m fedlib.rebuild.forks SOCKET

What notebooks import takes longer than the cells of many of them. Each kernel is a
process of its own, forked before any cell ran, so that notebooks share nothing else.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable


def serve(place: str) -> None:
    """Fork a kernel for each caller, until the standard input is closed."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen(64)
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            talk, _ = server.accept()
            launch = imported()
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
            if os.fork() == 0:
                server.close()
                begin(talk, launch)
            talk.close()


def imported() -> Callable[[list[str]], None]:
    """Import what notebooks do, for the first caller; return what starts a kernel."""
    from ipykernel.kernelapp import IPKernelApp

    import fedlib

    for name in fedlib.__all__:
        getattr(fedlib, name)
    return IPKernelApp.launch_instance


def begin(talk: socket.socket, launch: Callable[[list[str]], None]) -> None:
    """Be the kernel that a caller asks for, and end with either."""
    parent = os.getppid()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection, folder, variables = json.loads(talk.makefile().readline())
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    talk.sendall(str(os.getpid()).encode())
    threading.Thread(target=lambda: talk.recv(1) or os._exit(1), daemon=True).start()
    arguments = ["-f", connection, f"--IPKernelApp.parent_handle={parent}"]
    launch([*arguments, "--IPKernelApp.log_level=CRITICAL"])
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
