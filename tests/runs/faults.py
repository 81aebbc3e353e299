"""Workers with faults, for tests: processes do not see what a test replaces."""

import os
import signal

from fedlib.runs import address, checkpoints, worker
from fedlib.runs.spec import Spec

HERE, THERE = worker.here, worker.there


def _die_once(home) -> None:
    """Kill this process after the second round of a run, the first time."""
    real, died = checkpoints.save, home / ".died"

    def checkpoint(home, fed, after, *rest):
        real(home, fed, after, *rest)
        with (home / ".played").open("a") as file:
            file.write(f"{after.number} ")
        if after.number == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.save = checkpoint


def here(text: str, key: str, variables: dict[str, str]) -> worker.Answer:
    os.environ.update(variables)
    _die_once(address.folder(Spec.model_validate_json(text)))
    return HERE(text, key, variables)
