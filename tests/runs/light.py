"""A worker that imports nothing heavy and computes nothing: it starts in no time."""

import json
import os
import signal
import time
from pathlib import Path

KILLS, RAISES = 13, 66  # seeds


def here(text: str, key: str, variables: dict[str, str]) -> dict:
    """Write down who computed a run, and on what device, as its result."""
    seed = json.loads(text)["seed"]
    home = Path(variables["FEDLIB_CACHE"]) / "runs" / key
    home.mkdir(parents=True, exist_ok=True)
    with (home / "tries").open("a") as file:
        file.write(f"{os.getpid()} {variables['FEDLIB_DEVICE']}\n")
    if seed == KILLS:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == RAISES:
        return {"raised": ArithmeticError("the loss is nan")}
    (home / "result.safetensors").touch()
    return {"files": {}}


def slow(text: str, key: str, variables: dict[str, str]) -> dict:
    """Compute for ever."""
    here(text, key, variables | {"FEDLIB_CACHE": variables["FEDLIB_CACHE"] + "/slow"})
    time.sleep(600)
    return {}
