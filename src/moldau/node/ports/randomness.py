"""Randomness from the operating system."""

import random

from moldau.model.ports import Random


def system_random() -> Random:
    return random.SystemRandom()
