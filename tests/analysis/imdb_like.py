"""Makes the steps of examples/train_keras_imdb.py in seconds and without TensorFlow: --slow map is late."""

import argparse
import time

import stepscope

parser = argparse.ArgumentParser()
parser.add_argument("--slow", choices=["map", "none"], default="none")
late = 0.04 if parser.parse_args().slow == "map" else 0.0
for _ in range(2):
    for phase, steps in (("train", 40), ("eval", 5)):
        for _ in range(steps):
            with stepscope.step(phase):
                with stepscope.component("data_wait"):
                    time.sleep(late if phase == "train" else 0.0)
                with stepscope.component("forward"):
                    time.sleep(0.01)
