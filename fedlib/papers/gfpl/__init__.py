"""GFPL: its protocols, presets of all methods, and what its tables need."""

from fedlib.papers.gfpl.protocols import PAPER, gfpl

__all__ = ["PAPER", "gfpl"]
