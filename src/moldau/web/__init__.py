"""Shared by the HTTP interfaces: servers, health pages and limits."""
