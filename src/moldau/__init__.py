"""Moldau: a distributed commit log that speaks the Kafka protocol."""

__version__ = "0.1.0"
