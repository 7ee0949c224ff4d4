"""`python -m moldau_dev.bench`: everything that has a target, beside the least any program would have to do."""
