"""For tests, ours and yours: a real broker in a fixture, and the simulated ports."""
