"""Record batches to Arrow columns and back, for thousands of records at a time. Computes only: no I/O, no Spark."""
