"""Authentication of clients by SASL: the mechanisms of a listener and their credentials."""
