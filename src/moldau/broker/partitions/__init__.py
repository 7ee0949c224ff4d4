"""The partitions this node holds: their logs, what waits on them, and their upkeep."""
