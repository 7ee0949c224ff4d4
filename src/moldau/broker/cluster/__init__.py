"""The other nodes of the cluster: connections to them, their reachability, and the metadata in effect here."""
