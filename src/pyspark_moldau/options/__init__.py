"""The options of `format("moldau")`, parsed and validated: those of Spark's Kafka connector, and a few of our own."""
