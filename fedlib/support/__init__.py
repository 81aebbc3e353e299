"""Places on disk, files, progress, the code that a result depends on."""
