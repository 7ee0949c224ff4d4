"""The shell of a node: connections, handlers, partitions, drivers."""
