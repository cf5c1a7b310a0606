"""Parses the command line of the training scripts."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .data import TRAIN_IMAGES
from .slow import WAYS


def parse_arguments(description: str) -> argparse.Namespace:
    """Returns the parsed flags of both training scripts."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="\n".join(["ways to be slow:"] + [f"  {way:13} {words}" for way, words in WAYS.items()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--slow", choices=WAYS, default="none", help="what makes it slow (default: none)")
    parser.add_argument("--steps", type=int, default=192, metavar="N", help="training steps (default: 192)")
    parser.add_argument("--batch", type=int, default=160, metavar="N", help="images per step (default: 160)")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes that load images (default: one per core)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(__file__).parents[1] / "data",
        metavar="DIR",
        help="where the first start creates the images (default: examples/data)",
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.batch <= TRAIN_IMAGES:
        parser.error(f"--batch {arguments.batch}: give a number from 1 to {TRAIN_IMAGES}, a whole epoch")
    return arguments
