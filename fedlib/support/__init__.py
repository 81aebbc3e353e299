"""Places on disk, files, progress: what knows nothing of learning."""
