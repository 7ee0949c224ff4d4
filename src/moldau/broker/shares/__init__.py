"""Share groups (KIP-932) on brokers: share-partition leaders, and the state that they persist."""
