"""Cost against size: what one request costs a broker that has 10, 100, 1,000 or 10,000 of something."""
