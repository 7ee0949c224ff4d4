"""The write side of `format("moldau")`: tasks stage record batches, the driver commits them in one transaction."""
