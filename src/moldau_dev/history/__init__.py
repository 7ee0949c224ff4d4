"""What clients saw of a cluster, written down as it happened and checked afterwards.

`recorder` writes one line of JSON per event, `checker` finds what no right cluster can have answered.
"""
