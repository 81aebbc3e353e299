"""Artefacts that belong to no paper."""
