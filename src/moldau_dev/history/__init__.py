"""Record what clients observe of a cluster, and check it for anomalies.

`recorder` writes one line of JSON per event, `checker` finds responses that no correct cluster gives.
"""
