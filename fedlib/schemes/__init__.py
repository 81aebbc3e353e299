"""Partition schemes: settings, and the plain function that draws each."""
