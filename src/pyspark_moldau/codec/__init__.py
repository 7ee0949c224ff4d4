"""Vectorised conversion between record batches and Arrow columns, without I/O or Spark."""
