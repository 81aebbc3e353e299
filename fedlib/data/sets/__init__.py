"""One module per kind of source; each holds the entries that are read that way.

Its facts need no torch: what takes seconds to import is imported by the readers.
"""
