"""A broker and its controllers: finding the active one, asking it, staying registered with it."""
