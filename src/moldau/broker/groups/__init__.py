"""The broker's side of consumer groups: the shards of the offsets topic, and what they need from the node."""
