"""A whole cluster with its clients in one simulation: who is in it, what befalls it, and who watches."""
