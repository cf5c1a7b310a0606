"""The label of a command's run. Several nodes may agree on another one than the command was started with."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers


def observed(run: str, labels: Collection[str]) -> str:
    """Returns the label of the run that began as `run`; `labels` are those of all ledgers of its command."""
    if run in labels:
        return run
    same_name = {label for label in labels if _without_digits(label) == _without_digits(run)}
    return same_name.pop() if len(same_name) == 1 else run


def labels_in(directory: Path) -> set[str]:
    """Returns the labels of all ledgers of a directory that can be read."""
    labels = set()
    for path in open_ledgers(directory):
        with suppress(LedgerError, OSError), LedgerReader(path) as reader:
            if reader.header.named:
                labels.add(reader.header.run)
    return labels


def _without_digits(label: str) -> str:
    return label.rpartition("-")[0]
