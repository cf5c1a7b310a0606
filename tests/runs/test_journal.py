"""A journal that was cut off anywhere gives every row before the cut, and none that was not written."""

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from stepscope.exporter.sampling.sample import HostUse, RunSample
from stepscope.runs.model import Gap, NodeFacts
from stepscope.runs.recording.files import journal_path, journal_to_part
from stepscope.runs.recording.journal import HEAD, JournalReader, JournalWriter
from stepscope.runs.recording.schema import Layout, facts_after, samples_schema, with_metadata
from stepscope.runs.recording.writer import RecordingWriter, _sample_batch

from tests.support.damage import flipped
from tests.support.recording import Seen, header, sample, step
from tests.support.smallest import smallest

ROWS = 3


def make_journal(folder: Path) -> tuple[Path, list[int]]:
    """A journal of ROWS samples and the file's size after each."""
    layout = Layout().with_devices_of(sample(0))
    facts = asdict(facts_after(NodeFacts("n1"), layout, sample(0), HostUse()))
    schema = with_metadata(samples_schema(layout), {**facts, "run": "resnet", "interval": 0.5})
    folder.mkdir(parents=True)
    path = journal_path(folder, "samples", 1)
    writer = JournalWriter(path, schema)
    sizes = []
    for tick in range(ROWS):
        writer.append(_sample_batch(sample(tick), RunSample(), layout, schema))
        sizes.append(path.stat().st_size)
    writer.close()
    return path, sizes


def rows(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize("every", smallest([7, 1], {0}))
def test_a_journal_cut_at_any_byte_gives_all_whole_rows(tmp_path: Path, every: int) -> None:
    path, sizes = make_journal(tmp_path / "n1")
    whole = path.read_bytes()
    edges = (edge + near for edge in (0, HEAD.size, *sizes) for near in range(-HEAD.size, HEAD.size + 1))
    for cut in sorted({*range(0, len(whole), every), *edges} & {*range(len(whole))}):
        path.write_bytes(whole[:cut])
        reader = JournalReader(path)
        expected = sum(size <= cut for size in sizes)
        assert rows(reader.read()) == expected, cut
        if cut not in sizes and expected:
            assert reader.torn_bytes == cut - sizes[expected - 1]


def test_a_journal_read_byte_by_byte_as_it_grows_gives_each_row_once(tmp_path: Path) -> None:
    path, _ = make_journal(tmp_path / "n1")
    whole = path.read_bytes()
    reader = JournalReader(path)
    times = []
    for cut in [*range(0, len(whole), 97), len(whole)]:
        path.write_bytes(whole[:cut])
        times += [time for batch in reader.read() for time in batch.column("time").to_pylist()]
    assert times == [sample(tick).time for tick in range(ROWS)]


def test_a_flipped_bit_anywhere_in_a_journal_costs_its_row_at_most(tmp_path: Path) -> None:
    path, sizes = make_journal(tmp_path / "n1")
    whole = path.read_bytes()
    schema = HEAD.size + HEAD.unpack_from(whole)[1]
    for place in range(0, len(whole), 5):
        path.write_bytes(flipped(whole, 8 * place + place % 8))
        reader = JournalReader(path)
        times = [time for batch in reader.read() for time in batch.column("time").to_pylist()]
        if place < schema:  # without it, nothing can be decoded
            assert (times, reader.unread_bytes) == ([], len(whole)), place
        else:
            row = sum(size <= place for size in sizes)
            assert times == [sample(tick).time for tick in range(ROWS) if tick != row], place
            assert reader.unread_bytes == sizes[row] - [schema, *sizes][row]


@pytest.mark.parametrize("zeros", [8, 64, 4096])
def test_pages_that_a_power_loss_left_empty_are_no_rows(tmp_path: Path, zeros: int) -> None:
    path, sizes = make_journal(tmp_path / "n1")
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(zeros))
    reader = JournalReader(path)
    assert rows(reader.read()) == ROWS
    assert reader.torn_bytes == zeros
    # The last batch's head reached the disk, its values did not.
    body = len(whole) - sizes[-2]
    path.write_bytes(whole[: -body // 2] + bytes(body // 2))
    assert rows(JournalReader(path).read()) == ROWS - 1


def test_a_torn_tail_is_left_out_of_the_part_and_said_by_every_later_reader(tmp_path: Path) -> None:
    path, sizes = make_journal(tmp_path / "n1")
    path.write_bytes(path.read_bytes()[: sizes[1] + 100])
    reason = "100 bytes of `n1/samples-000001` are damaged or incomplete"
    gap = Gap("samples", reason, "n1", start=sample(1).time)
    before = Seen(tmp_path).read()
    assert before.ticks() == [0, 1]
    assert before.source.facts.gaps == (Gap("run", "`run.json` is missing"), gap)
    RecordingWriter(tmp_path, "n1", 0.5, "resnet").close()
    assert not path.exists()
    after = Seen(tmp_path).read()
    assert after.ticks() == [0, 1]
    assert after.source.facts.gaps == (gap,)
    assert before.read().ticks() == [0, 1], "who has read the journal gets nothing twice from its part"


def test_every_class_of_cut_of_every_table_can_be_taken_over(tmp_path: Path) -> None:
    path, sizes = make_journal(tmp_path / "whole" / "n1")
    whole = path.read_bytes()
    for cut in (0, 1, 4, 200, sizes[0] - 1, sizes[0], sizes[0] + 5, sizes[1] - 8, len(whole) - 1):
        directory = tmp_path / str(cut)
        (directory / "n1").mkdir(parents=True)
        journal_path(directory / "n1", "samples", 1).write_bytes(whole[:cut])
        writer = RecordingWriter(directory, "n1", 0.5, "resnet")
        writer.sample(sample(7))
        writer.steps(header(), [step(0)])
        writer.close()
        expected = [*range(sum(size <= cut for size in sizes)), 7]
        assert Seen(directory).read().ticks() == expected, cut


def test_a_writer_killed_between_the_part_and_the_end_of_its_journal_gives_no_row_twice(
    tmp_path: Path,
) -> None:
    path, _ = make_journal(tmp_path / "n1")
    journal = path.read_bytes()
    journal_to_part(tmp_path / "n1", "samples", 1)
    path.write_bytes(journal)
    assert Seen(tmp_path).read().ticks() == list(range(ROWS))
    RecordingWriter(tmp_path, "n1", 0.5, "resnet").close()
    assert not path.exists()
    assert Seen(tmp_path).read().ticks() == list(range(ROWS))


def test_what_a_writer_killed_within_a_part_left_behind_is_cleared(tmp_path: Path) -> None:
    path, _ = make_journal(tmp_path / "n1")
    unfinished = tmp_path / "n1" / ".samples-000001.parquet.unfinished"
    unfinished.write_bytes(b"PAR1 half")
    assert Seen(tmp_path).read().ticks() == list(range(ROWS))
    RecordingWriter(tmp_path, "n1", 0.5, "resnet").close()
    assert not unfinished.exists()
    assert not path.exists()
    assert Seen(tmp_path).read().ticks() == list(range(ROWS))
