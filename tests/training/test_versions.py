"""A ledger of a later version is read if it says that it suits; another one says what to upgrade."""

from pathlib import Path

import pytest
from stepscope.exporter.ledgers.reader import LedgerError, LedgerReader, open_ledgers
from stepscope.training import layout

from tests.support.training_script import run_to_end

GROWTH = 4096  # bytes that a later version inserts before every section
MORE = 24  # bytes that it adds to every record


@pytest.fixture(scope="module")
def of_today(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger of this version with everything in it."""
    folder = tmp_path_factory.mktemp("of-today")
    run_to_end(
        """
        for _ in range(3): stepscope.record_step("train", 1.0, 1.5, 0.25)
        stepscope.gauge("loss", 0.5)
        stepscope.count("tokens", 4096)
        """,
        folder,
    )
    (path,) = open_ledgers(folder)
    return path.read_bytes()


@pytest.fixture
def written(of_today: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "today.ledger"
    path.write_bytes(of_today)
    return path


def of_a_later_version(ledger: bytes, readable_from: int) -> bytes:
    """Returns the ledger as a later version may write it: sections elsewhere, with longer items."""
    new, table = bytearray(ledger[: layout.HEADER_BYTES]), []
    for at, items, item_bytes in layout.SECTIONS:
        more = MORE if item_bytes == layout.RECORD_BYTES else 0
        new += bytes(GROWTH)
        table.append((len(new), items, item_bytes + more))
        for number in range(items):
            new += ledger[at + number * item_bytes :][:item_bytes] + b"\xff" * more
    fields = list(layout.HEADER.unpack_from(ledger))
    fields[1:3] = [layout.VERSION + 1, len(new)]
    layout.HEADER.pack_into(new, 0, *fields)
    layout.IDENTITY.pack_into(new, layout.IDENTITY_AT, readable_from, 7)
    for number, section in enumerate(table):
        layout.SECTION.pack_into(new, layout.SECTIONS_AT + number * layout.SECTION.size, *section)
    return bytes(new)


def test_a_ledger_of_the_next_version_that_suits_this_reader_gives_the_same_figures(written: Path) -> None:
    later = written.with_name("later.ledger")
    later.write_bytes(of_a_later_version(written.read_bytes(), layout.VERSION))
    with LedgerReader(written) as today, LedgerReader(later) as tomorrow:
        assert tomorrow.totals() == today.totals()
        assert tomorrow.new_steps() == today.new_steps()
        assert (today.header.attempt, tomorrow.header.attempt) == (0, 7)
        assert tomorrow.totals().gauges == {"loss": 0.5}
        assert tomorrow.totals().counts == {"tokens": 4096}


def test_a_ledger_of_a_version_that_needs_a_newer_reader_says_to_upgrade_the_exporter(written: Path) -> None:
    written.write_bytes(of_a_later_version(written.read_bytes(), layout.VERSION + 1))
    with pytest.raises(LedgerError, match=r"version 2, .* reads 1: upgrade Stepscope in the exporter"):
        LedgerReader(written)


@pytest.mark.parametrize("version", [0, -1])
def test_a_ledger_older_than_every_version_says_to_upgrade_the_training(written: Path, version: int) -> None:
    content = bytearray(written.read_bytes())
    content[8:16] = version.to_bytes(8, "little", signed=True)
    written.write_bytes(content)
    with pytest.raises(LedgerError, match="upgrade Stepscope in the training environment") as caught:
        LedgerReader(written)
    assert caught.value.reason == "version"


@pytest.mark.parametrize(
    ("section", "place", "value"),
    [
        *((0, 0, 0), (1, 0, 2**62), (2, 1, 2**40), (2, 1, 1)),
        *((3, 2, 8), (3, 0, -1), (3, 1, 0), (2, 2, 2**40)),
        (1, 0, "eight bytes before the end"),
    ],
)
def test_a_table_of_sections_that_cannot_be_is_refused(
    written: Path, section: int, place: int, value: int | str
) -> None:
    content = bytearray(written.read_bytes())
    at = layout.SECTIONS_AT + section * layout.SECTION.size + 8 * place
    value = value if isinstance(value, int) else len(content) - 8
    content[at : at + 8] = value.to_bytes(8, "little", signed=True)
    written.write_bytes(content)
    with pytest.raises(LedgerError) as caught:
        LedgerReader(written)
    assert caught.value.reason == "length"
