"""FedPG: its protocols, presets of all methods, and what its tables need."""

from fedlib.papers.fedpg.protocols import PAPER, fedpg

__all__ = ["PAPER", "fedpg"]
