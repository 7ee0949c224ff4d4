"""The classic protocol: members compute assignments, the coordinator collects members and distributes them."""
