"""The schema registry, compatible with Confluent's API."""
