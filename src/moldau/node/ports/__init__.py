"""The real ports: the system's clock, randomness, files, threads and sockets. Nothing above is imported here."""
