"""A request on its way to its handler: the context, the router, and the checks that handlers share."""
