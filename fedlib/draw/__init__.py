"""Figures and tables from frames; of methods and data sets it knows the names only."""
