"""The partitions of this node: their logs, roles, waiters and maintenance."""
