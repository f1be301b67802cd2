"""Keyed noise value by value, from NumPy's own Philox."""

import math

import numpy as np


def slow_normals(key, turn, people, places, width):
    """(rows, width): Box and Muller on the stream at (place, person, turn)."""
    return np.array(
        [
            _row(key, [0, int(place), int(person), turn], width)
            for person, place in zip(people, places, strict=True)
        ]
    )


def _row(key, counter, width):
    stream = np.random.Philox(key=key, counter=np.array(counter, dtype=np.uint64))
    words = [int(word) for word in stream.random_raw(2 * width + 2)]
    found = []
    for first, second in zip(words[::2], words[1::2], strict=True):
        radius = math.sqrt(-2 * math.log(((first >> 11) + 1) / 2**53))
        angle = 2 * math.pi * (second >> 11) / 2**53
        found += [radius * math.cos(angle), radius * math.sin(angle)]
    return found[:width]
