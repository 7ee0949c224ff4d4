"""The classic protocol: members assign among themselves, the coordinator only gathers them and passes it on."""
