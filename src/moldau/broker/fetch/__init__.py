"""Fetch: consumers, followers, the metadata log, and their fetch sessions."""
