"""`python -m moldau_dev.bench`: everything that has a target, compared with a minimal program for the same traffic."""
