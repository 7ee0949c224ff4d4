"""Consumer groups (KIP-848): the coordinator computes assignments, members reconcile incrementally."""
