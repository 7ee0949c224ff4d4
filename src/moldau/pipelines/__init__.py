"""Spark jobs between topics and files; each job has a folder with its state and progress.

Spark is imported when a job starts: this package, help and `--emit` work without it.
"""
