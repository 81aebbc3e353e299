"""FedHPro: its protocols, presets of all methods, and what its tables need."""

from fedlib.papers.fedhpro.protocols import PAPER, fedhpro

__all__ = ["PAPER", "fedhpro"]
