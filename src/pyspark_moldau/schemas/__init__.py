"""Registered values, for whole columns: Avro, Protobuf and JSON Schema in the registries' wire format, as Arrow."""
