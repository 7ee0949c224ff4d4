"""Meters, rate-limited logging, timers and time slices, free of Kafka semantics."""
