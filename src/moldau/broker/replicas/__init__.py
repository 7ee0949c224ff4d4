"""Replication between brokers: fetchers of followers, ISR changes of leaders, and lost replicas."""
