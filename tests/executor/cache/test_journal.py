"""The journal of cached objects: whatever part of it was written, it names objects that were there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kaas.executor.cache import journal
from kaas.executor.cache.journal import CacheFiles, CacheJournal, KeptGroup, KeptObject


@pytest.fixture
def file() -> Iterator[int]:
    made = os.memfd_create("journal")
    yield made
    os.close(made)


def group(number: int, *places: int) -> KeptGroup:
    objects = [KeptObject(place, b"%d %d" % (number, place), 7, "float32", (7,), b"tuple") for place in places]
    return KeptGroup(number, [number << 21], objects)


def there(file: int) -> dict[int, list[int]]:
    """The places of objects by group, as the next executor reads them."""
    return {each.number: [kept.place for kept in each.objects] for each in CacheJournal(file).groups}


def test_the_next_executor_reads_what_was_written(file: int) -> None:
    written = CacheJournal(file)
    written.add(group(1, 0, 256))
    written.add(group(2, 0))
    written.left(1, 0)
    read = CacheJournal(file)
    assert read.groups == [group(1, 256), group(2, 0)]
    read.left(1, 256)
    read.add(group(3, 0))
    assert there(file) == {2: [0], 3: [0]}


def test_a_journal_that_ends_anywhere_is_one_of_an_earlier_time(file: int) -> None:
    written, sizes, states = CacheJournal(file), [0], [there(file)]
    for change in (group(1, 0, 256), (1, 0), group(2, 0)):
        if isinstance(change, KeptGroup):
            written.add(change)
        else:
            written.left(*change)
        sizes.append(os.fstat(file).st_size)
        states.append(there(file))
    whole = os.pread(file, sizes[-1], 0)
    for nbytes in range(sizes[-1] + 1):
        os.ftruncate(file, 0)
        os.pwrite(file, whole[:nbytes], 0)
        assert there(file) == states[max(at for at, size in enumerate(sizes) if size <= nbytes)]
        CacheJournal(file).add(group(9, 0))
        assert there(file)[9] == [0]


def test_bytes_that_are_no_journal_name_nothing(file: int) -> None:
    os.pwrite(file, bytes(range(256)) * 10, 0)
    assert there(file) == {}
    CacheJournal(file).add(group(1, 0))
    assert there(file) == {1: [0]}


def test_a_spoilt_journal_stays_empty(file: int) -> None:
    written = CacheJournal(file)
    written.add(group(1, 0))
    written.spoil()
    written.add(group(2, 0))
    written.left(1, 0)
    assert there(file) == {}


def test_files_that_are_spoilt_leave_nothing() -> None:
    files = CacheFiles.made()
    CacheJournal(files.journal).add(group(1, 0))
    files.spoil()
    assert there(files.journal) == {}
    files.close()


def test_objects_that_come_and_go_do_not_fill_the_memory(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONGEST_BYTES", 1000)
    written = CacheJournal(file)
    written.add(group(0, 0, 256))
    written.left(0, 0)
    for number in range(1, 1000):
        written.add(group(number, 0))
        written.left(number, 0)
        assert os.fstat(file).st_size < 1400
    assert there(file) == {0: [256]}
