"""The read side of `format("moldau")`: planned on the driver, fetched and decoded in tasks."""
