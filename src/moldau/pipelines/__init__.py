"""The data pipeline: jobs on Spark between topics and files, each with a folder that says how it is doing.

Importing this package, or what it says without running a job, needs no Spark: that is loaded when a job starts.
"""
