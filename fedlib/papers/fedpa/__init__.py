"""FedPA: its protocols, presets of all methods, and what its tables need."""

from fedlib.papers.fedpa.protocols import PAPER, fedpa

__all__ = ["PAPER", "fedpa"]
