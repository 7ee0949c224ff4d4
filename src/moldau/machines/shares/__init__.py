"""Share groups on the leader of a partition: the in-flight window of a share partition, and share sessions."""
