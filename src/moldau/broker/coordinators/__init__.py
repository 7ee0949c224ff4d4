"""The runtime that group and transaction coordinators share: shards on partitions of an internal topic."""
