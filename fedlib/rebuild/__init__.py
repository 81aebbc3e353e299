"""Artefacts: their parameters, their notebooks, when they are stale, the scoreboard."""
