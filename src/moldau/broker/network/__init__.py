"""Connections: frames become requests, requests become answers, in order and within bounds."""
