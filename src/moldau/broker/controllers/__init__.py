"""A broker and its controllers: discovery of the active one, requests to it, registration and heartbeats."""
