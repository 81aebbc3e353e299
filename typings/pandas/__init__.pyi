# pandas ships no types, and those that pyright infers for frames are wrong: a frame is
# anything here, and all that is not of pandas is checked.
from typing import Any

def __getattr__(name: str) -> Any: ...
