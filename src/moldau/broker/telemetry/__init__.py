"""Client telemetry (KIP-714): clients push their metrics, and the metrics page shows them."""
