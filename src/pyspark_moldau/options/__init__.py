"""The options of `format("moldau")`, parsed and validated: those of Spark's Kafka connector and Moldau's own."""
