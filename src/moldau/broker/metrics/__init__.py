"""What a broker tells Prometheus: declared once, collected when asked, written out in slices."""
