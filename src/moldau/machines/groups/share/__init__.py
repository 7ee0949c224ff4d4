"""Share groups (KIP-932): members that share the partitions of their topics, without offsets of their own."""
