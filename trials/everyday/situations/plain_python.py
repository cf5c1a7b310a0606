"""Plain Python without steps: counts words with a list in place of a dictionary."""

import random

from trials.everyday.clock import GOOD, cost, lasts

random.seed(1)
text = [f"word {random.randrange(3000)}" for _ in range(20_000)]


def count():
    if GOOD:
        counts = {}
        for word in text:
            counts[word] = counts.get(word, 0) + 1
        return counts
    words, numbers = [], []
    for word in text:
        if word not in words:  # the cause
            words.append(word)
            numbers.append(0)
        numbers[words.index(word)] += 1  # the cause
    return dict(zip(words, numbers, strict=True))


while lasts():
    with cost:
        count()
    if GOOD:
        break
