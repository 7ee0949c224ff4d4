"""The connection core for peers, the command line, benchmarks and tests."""
