"""What the broker measures, logs and schedules with, free of any Kafka semantics."""
