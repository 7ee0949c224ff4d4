"""One file per API, and the table that lists them."""
