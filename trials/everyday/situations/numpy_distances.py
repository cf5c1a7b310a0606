"""NumPy without steps: distances of all pairs in two loops."""

import numpy as np

from trials.everyday.clock import GOOD, cost, lasts

points = np.random.default_rng(1).random((400, 64))
data = np.random.default_rng(2).random((1024, 1024))


def distances():
    if GOOD:
        squares = (points**2).sum(1)
        return squares[:, None] + squares - 2 * points @ points.T
    found = np.zeros((400, 400))
    for row in range(400):
        for column in range(400):
            found[row, column] = ((points[row] - points[column]) ** 2).sum()  # the cause
    return found


while lasts():
    with cost:
        near = distances()  # the cause
    data = data @ data.T / 1024
