"""One module per kind of source; each holds the entries that are read that way."""
