"""`make demo`: a cluster, a clickstream, the activity pipeline, a kill in the middle of a batch, and the count."""
