"""A Dask scheduler and workers, forked from one process that imports all once.

``python -m tests.runs.dask_nodes FOLDER``: a scheduler, whose address it writes into
FOLDER, and three workers without a nanny. Each has a cache of its own; ``dies`` kills
itself at its first run, ``edited`` has other code.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from distributed import Scheduler, Worker

from fedlib import papers
from fedlib.runs import address, runner, worker


async def schedule(folder: Path) -> None:
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        (folder / "address.new").write_text(scheduler.address)
        (folder / "address.new").rename(folder / "address")
        await scheduler.finished()


async def work(folder: Path, name: str) -> None:
    place = {"name": name, "local_directory": str(folder), "host": "127.0.0.1"}
    address = (folder / "address").read_text()
    async with Worker(address, nthreads=1, dashboard=False, **place) as node:
        await node.finished()


def fork(folder: Path, name: str) -> None:
    if os.fork():
        return
    os.environ["FEDLIB_CACHE"] = str(folder / name)
    if name == "dies":
        runner.run = lambda spec: os.kill(os.getpid(), signal.SIGKILL)
    if name == "edited":
        real = address.code_of

        def edited(spec):
            found = real(spec)
            parts = found.parts | {"fedlib.core.local.train_local": "0"}
            return found._replace(hash="0", parts=parts)

        address.code_of = edited
    asyncio.run(schedule(folder) if name == "scheduler" else work(folder, name))
    os._exit(0)


if __name__ == "__main__":
    here = Path(sys.argv[1])
    os.environ["FEDLIB_CACHE"] = str(here / "warm")
    known = papers.fedmps("digits", "local", clients=2, rounds=1, net="digits_linear")
    assert "files" in worker.there(known.model_dump_json(), address.key(known), "numba")
    fork(here, "scheduler")
    while not (here / "address").exists():
        pass
    for each in sys.argv[2:]:
        fork(here, each)
    signal.pause()
