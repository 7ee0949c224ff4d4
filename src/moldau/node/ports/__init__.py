"""The real ports: the system clock, randomness, files, threads and sockets. They import nothing from upper layers."""
