"""The methods of the five papers, one file each."""
