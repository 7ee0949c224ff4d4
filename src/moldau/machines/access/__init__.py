"""Access control as pure functions and state machines: authentication and authorization."""
