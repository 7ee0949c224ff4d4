"""Avro, JSON Schema and Protobuf: parsing, compatibility, and values in the wire format of schema registries."""
