"""A data set that is drawn once for all tests of the examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.images.data import prepare_dataset


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `--data` takes: a folder with the data set of the examples, at its full size."""
    folder = tmp_path_factory.mktemp("data")
    prepare_dataset(folder)
    return folder
