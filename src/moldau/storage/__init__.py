"""Logs on disk: segments, indexes, checkpoints, recovery, retention, compaction."""
