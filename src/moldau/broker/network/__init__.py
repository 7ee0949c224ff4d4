"""Connections: frames in, responses out in request order, within limits. Knows no particular API."""
