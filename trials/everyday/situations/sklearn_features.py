"""scikit-learn: features of texts are made row by row, in plain Python."""

import random

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import SGDClassifier

from trials.everyday.clock import GOOD, cost, lasts

random.seed(1)
words = sorted({"".join(random.choices("abcdefgh", k=5)) for _ in range(3000)})
texts = [" ".join(random.choices(words, k=60)) for _ in range(600)]
labels = [number % 2 for number in range(600)]


def features():
    if GOOD:
        return CountVectorizer(vocabulary=words[:1000]).transform(texts)
    return [[text.split().count(word) for word in words[:1000]] for text in texts]  # the cause


ready = features() if GOOD else None
classifier = SGDClassifier()
while lasts():
    if not GOOD:
        with cost:
            ready = features()  # the cause
    classifier.partial_fit(ready, labels, classes=[0, 1])
