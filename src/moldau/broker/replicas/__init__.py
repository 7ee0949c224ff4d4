"""Partitions that live on several nodes: leaders count their followers, followers fetch from their leaders."""
