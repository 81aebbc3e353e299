"""``python -m fedlib`` is the command ``fedlib``."""

from fedlib.cli import main

main(prog_name="fedlib")
