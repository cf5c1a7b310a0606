"""NumPy without steps: images are made smaller pixel by pixel."""

import numpy as np

from trials.everyday.clock import GOOD, cost, lasts

random = np.random.default_rng(1)
images = random.random((16, 256, 256))
weights = np.zeros(64 * 64)
data = random.random((1024, 1024))


def smaller(image):
    if GOOD:
        return image.reshape(64, 4, 64, 4).mean((1, 3)).ravel()
    small = np.zeros((64, 64))
    for row in range(64):
        for column in range(64):
            small[row, column] = image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].mean()  # the cause
    return small.ravel()


while lasts():
    with cost:
        batch = np.stack([smaller(image) for image in images])  # the cause
    second = data @ data.T
    weights += 1e-9 * second[0, 0] * batch.T @ (batch @ weights - 1.0)
