"""FedMPS: its protocols, presets of all methods, and what its tables need."""

from fedlib.papers.fedmps.protocols import PAPER, fedmps

__all__ = ["PAPER", "fedmps"]
