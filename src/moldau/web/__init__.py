"""What the HTTP interfaces share: servers, health pages and limits."""
