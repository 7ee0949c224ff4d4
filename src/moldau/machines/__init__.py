"""Pure machines: requests and events go in, records and effects come out. Nothing here waits or reads a clock."""
