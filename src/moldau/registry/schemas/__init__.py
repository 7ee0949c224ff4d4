"""Avro, JSON Schema and Protobuf: parsing, one canonical form, and compatibility."""
