"""The broker's side of transactions: the shards of the state topic, and the markers that end a transaction."""
