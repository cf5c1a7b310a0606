"""Marks tests that train with PyTorch in processes of their own, so that the tests need not import it."""

from importlib.util import find_spec

import pytest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
