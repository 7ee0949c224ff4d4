"""Consumer groups (KIP-848): the coordinator assigns partitions, members follow in their own time."""
