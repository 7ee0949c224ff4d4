"""Moldau beside Apache Kafka: the same clients and loads, in turn, on the same machine.

    rows ──> runner ──> subject (Moldau) ──┐
                └─────> subject (Kafka)  ──┴─> measured in turn, the other one stopped by SIGSTOP

Apache Kafka comes from Maven (`extra/java`) and runs with the JVM flags of its own start script.
"""
