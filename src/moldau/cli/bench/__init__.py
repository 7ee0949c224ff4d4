"""`moldau bench`: throughput and latency, compared with baselines that do the minimum any server must."""
