"""Trains a small text CNN on reviews that look like IMDB's, with Keras. --slow selects a way to be slow.

    pip install tensorflow keras
    stepscope run -- python examples/train_keras_imdb.py --slow map

No line here is for Stepscope. The reviews are made up: no data set is downloaded.
"""

from __future__ import annotations

import argparse
import sys
import time

try:
    import keras
    import tensorflow as tf
except ImportError:
    print("train_keras_imdb.py needs TensorFlow and Keras: `pip install tensorflow keras`", file=sys.stderr)
    sys.exit(2)

import numpy as np

WORDS, LENGTH, BATCH = 2000, 80, 32
SLOW = {
    "none": "the pipeline works ahead of the training",
    "map": "a transform takes 40 ms per batch, and starts when a step asks for its batch",
}


def main() -> None:
    """Trains, evaluates after each epoch, and keeps the best weights."""
    parser = argparse.ArgumentParser(description="Trains a small text CNN with Keras.")
    parser.add_argument("--slow", choices=SLOW, default="none", help="what is slow")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--reviews", type=int, default=2000)
    parser.add_argument("--checkpoint", default="best.weights.h5", help="where to keep the best weights")
    arguments = parser.parse_args()
    print(f"--slow {arguments.slow}: {SLOW[arguments.slow]}", flush=True)
    keras.utils.set_random_seed(1)
    model = text_cnn()
    best = keras.callbacks.ModelCheckpoint(arguments.checkpoint, save_best_only=True, save_weights_only=True)
    model.fit(
        pipeline(arguments.reviews, arguments.slow),
        validation_data=pipeline(arguments.reviews // 8, "none"),
        epochs=arguments.epochs,
        callbacks=[best],
        verbose=2,
    )


def text_cnn() -> keras.Model:
    """Returns the model: embedding, convolution, the maximum over the words, one output."""
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 32),
            keras.layers.Dropout(0.2),
            keras.layers.Conv1D(64, 5, activation="relu"),
            keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def pipeline(reviews: int, slow: str) -> tf.data.Dataset:
    """Returns batches of reviews (int32, BATCH x LENGTH) and whether they are positive (float32, BATCH)."""
    random = np.random.default_rng(reviews)
    words = random.integers(0, WORDS, (reviews, LENGTH)).astype("int32")
    positive = (words < WORDS // 100).any(axis=1).astype("float32")  # some words are always kind
    batches = tf.data.Dataset.from_tensor_slices((words, positive)).shuffle(reviews, seed=1).batch(BATCH)
    if slow == "map":
        return batches.map(lambda text, label: (tf.ensure_shape(_clean(text), (None, LENGTH)), label))
    return batches.cache().prefetch(tf.data.AUTOTUNE)


def _clean(text: tf.Tensor) -> tf.Tensor:
    def slowly(words: np.ndarray) -> np.ndarray:
        time.sleep(0.04)
        return words

    return tf.numpy_function(slowly, [text], tf.int32)


if __name__ == "__main__":
    main()
