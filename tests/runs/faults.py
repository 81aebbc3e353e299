"""Workers with faults, for tests: processes do not see what a test replaces."""

import os
import signal

from fedlib.runs import runner, worker
from fedlib.runs.spec import Spec

HERE, THERE = worker.here, worker.there


def _die_once(home) -> None:
    """Kill this process after the second round of a run, the first time."""
    real, died = runner._checkpoint, home / ".died"

    def checkpoint(home, fed, after, *rest):
        real(home, fed, after, *rest)
        with (home / ".played").open("a") as file:
            file.write(f"{after.number} ")
        if after.number == 2 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    runner._checkpoint = checkpoint


def here(text: str, key: str, variables: dict[str, str]) -> worker.Answer:
    os.environ.update(variables)
    _die_once(runner.folder(Spec.model_validate_json(text)))
    return HERE(text, key, variables)
