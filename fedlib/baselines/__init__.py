"""Baselines that the papers' tables name, one file each."""
