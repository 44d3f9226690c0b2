"""Values in shared memory: readers in this process and in others see them, and memory is used again."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kaas.errors import OutOfHostMemory
from kaas.wire.connections.shared_memory import ALIGN_BYTES, IDLE_AT_MOST, MAPPED_AT_MOST, Inbox, Outbox, open_file
from kaas.wire.messages import Block
from tests.limits import address_space_bytes, limited
from tests.open_files import memory_files


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    outbox = Outbox()
    yield outbox
    outbox.close()


def open_files() -> int:
    gc.collect()
    return len(memory_files())


def test_a_reader_sees_the_written_values(outbox: Outbox) -> None:
    inbox = Inbox()
    values: tuple[Any, ...] = (b"some bytes", b"", np.arange(100_000, dtype=np.float64), memoryview(bytearray(70_000)))
    for data in values:
        lease = outbox.put(data)
        seen = inbox.view(lease.block)
        assert seen == lease.view == memoryview(data).cast("B")
        assert seen.readonly
        assert lease.view.readonly


def test_several_values_in_one_file(outbox: Outbox) -> None:
    values: list[Any] = [b"a", np.arange(1000), b"", b"c" * 1000]
    lease = outbox.put_all(values)
    assert len({block.fd for block in lease.blocks}) == 1
    assert all(block.offset_bytes % ALIGN_BYTES == 0 for block in lease.blocks)
    inbox = Inbox()
    assert [inbox.view(block) for block in lease.blocks] == [memoryview(value).cast("B") for value in values]


def test_a_reader_cannot_write_the_memory_it_reads(outbox: Outbox) -> None:
    lease = outbox.put(b"as it was put" * 10_000)
    file = open_file(lease.block)
    writable = os.open(f"/proc/self/fd/{file}", os.O_RDWR)  # the kernel lets the owner of a memory file open it anew
    with pytest.raises(PermissionError):
        os.write(writable, b"changed")
    with pytest.raises(PermissionError):
        mmap.mmap(writable, 10_000)
    assert Inbox().map_file(file)[: lease.block.nbytes] == lease.view
    os.close(writable)
    os.close(file)


def test_memory_is_used_again(outbox: Outbox) -> None:
    first = outbox.put(bytes(100_000))
    second = outbox.put(bytes(100_000))
    assert first.block.fd != second.block.fd
    first.release()
    first.release()
    third, fourth = outbox.put(b"x" * 90_000), outbox.put(b"y" * 90_000)
    assert third.block.fd == first.block.fd
    assert fourth.block.fd not in (second.block.fd, third.block.fd)
    assert Inbox().view(third.block) == b"x" * 90_000


def test_a_small_value_takes_no_large_file(outbox: Outbox) -> None:
    large = outbox.put(bytes(10 << 20))
    large.release()
    assert outbox.put(b"small").block.fd != large.block.fd
    assert outbox.put(bytes(10 << 20)).block.fd == large.block.fd


def test_an_interrupted_copy_gives_its_memory_back(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(np, "copyto", interrupted)
        for values in ([bytes(100_000)], [bytes(100_000), b"x"], [bytes(300_000)]):
            with pytest.raises(KeyboardInterrupt):
                outbox.put_all(values)
    assert outbox._leased == 0
    leases = [outbox.put(bytes(nbytes)) for nbytes in (100_000, 300_000)]
    assert open_files() - before == len(leases) == outbox._leased


@pytest.mark.parametrize("limit", [resource.RLIMIT_FSIZE, resource.RLIMIT_AS])
def test_a_file_that_gets_no_memory_is_closed(outbox: Outbox, limit: int) -> None:
    before, value = open_files(), np.zeros(8 << 20, np.uint8)
    room_bytes = value.nbytes // 2 + (address_space_bytes() if limit == resource.RLIMIT_AS else 0)
    with limited(limit, room_bytes), pytest.raises(OutOfHostMemory, match=f"{value.nbytes} bytes") as caught:
        outbox.put(value)
    assert caught.value.reason in (os.strerror(errno.EFBIG), os.strerror(errno.ENOMEM))
    assert open_files() == before
    assert outbox._leased == 0


def test_a_process_without_descriptors_names_them(outbox: Outbox) -> None:
    block, too_many = outbox.put(b"x").block, os.strerror(errno.EMFILE)
    with limited(resource.RLIMIT_NOFILE, 0):
        for attempt in (lambda: outbox.put(bytes(1 << 20)), lambda: Inbox().view(block), lambda: open_file(block)):
            with pytest.raises(OutOfHostMemory, match=too_many):
                attempt()
    assert outbox._leased == 1


@pytest.mark.slow
def test_idle_memory_is_limited() -> None:
    before = open_files()
    outbox = Outbox(limit_idle_bytes=1 << 20)
    leases = [outbox.put(bytes(500_000)) for _ in range(5)]
    for lease in leases:
        lease.release()
    assert open_files() - before == 2
    few = [outbox.put(b"") for _ in range(3)]
    outbox.close()
    for lease in few:
        lease.release()
    assert open_files() == before


def test_idle_files_are_few() -> None:
    before = open_files()
    outbox = Outbox()
    leases = [outbox.put(b"x") for _ in range(IDLE_AT_MOST + 5)]
    for lease in leases:
        lease.release()
    assert open_files() - before == IDLE_AT_MOST
    outbox.close()


def test_threads_put_and_release(outbox: Outbox) -> None:
    inbox, wrong = Inbox(), list[int]()

    def work(value: int) -> None:
        data = bytes([value]) * 100_000
        for _ in range(50):
            lease = outbox.put(data)
            if inbox.view(lease.block) != data:
                wrong.append(value)
            lease.release()

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- other processes

SENDER = """
import sys
from kaas.wire.connections.shared_memory import Outbox
from kaas.wire.messages import encode
outbox = Outbox()
print(encode(outbox.put(b"from afar" * 10000).block).hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_between_processes() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SENDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdout is not None
        block = msgspec.msgpack.decode(bytes.fromhex(sender.stdout.readline()), type=Block)
        inbox = Inbox()
        seen = inbox.view(block)
        assert seen == b"from afar" * 10000
        sender.communicate()
    assert seen == b"from afar" * 10000  # the memory is there as long as a view of it
    with pytest.raises(OSError, match=r"No such (process|file)"):
        inbox.view(block)
    inbox.forget(block.pid)


def test_a_number_that_means_another_file_now() -> None:
    inbox = Inbox()
    short_lived = Outbox(limit_idle_bytes=0)
    first = short_lived.put(b"first")
    seen = inbox.view(first.block)
    first.release()
    second = short_lived.put(b"second")
    assert first.block.fd == second.block.fd
    assert bytes(inbox.view(second.block)) == b"second"
    assert bytes(seen) == b"first"


# --- descriptors that are no block


def test_files_that_are_no_sealed_memory_are_not_read(tmp_path: Path) -> None:
    pid, inbox = os.getpid(), Inbox()
    (tmp_path / "file").write_bytes(b"x" * 100)
    reading, writing = os.pipe()
    memory = os.memfd_create("mine")  # it could shrink while a process reads
    os.ftruncate(memory, 100)
    empty = os.memfd_create("empty", os.MFD_ALLOW_SEALING)
    with (tmp_path / "file").open() as file:
        for fd in (file.fileno(), reading, writing, memory, empty, 1_000_000, -1):
            with pytest.raises(OSError):  # noqa: PT011 - what the kernel says differs
                inbox.view(Block(pid, fd, 0, 1))
    for fd in (reading, writing, memory, empty):
        os.close(fd)


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 1 << 20), (1 << 20, 1), (-1, 1), (0, -1), (2**62, 2**62)])
def test_nothing_beyond_the_end_is_read(outbox: Outbox, offset: int, nbytes: int) -> None:
    block = outbox.put(b"x").block
    with pytest.raises(OSError, match="beyond"):
        Inbox().view(msgspec.structs.replace(block, offset_bytes=offset, nbytes=nbytes))


def test_memory_that_this_process_cannot_map() -> None:
    file = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 1 << 60)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(OutOfHostMemory, match=os.strerror(errno.ENOMEM)):
        Inbox().map_file(file)
    with pytest.raises(OutOfHostMemory, match=os.strerror(errno.ENOMEM)):
        Inbox().view(Block(os.getpid(), file, 0, 1))
    os.close(file)


def test_memory_of_others_cannot_be_made_smaller(outbox: Outbox) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(outbox.put(b"x").block.fd, 0)


def test_files_of_many_senders_take_no_descriptors_of_a_reader() -> None:
    inbox, before = Inbox(), open_files()
    for number in range(2 * MAPPED_AT_MOST):
        sender = Outbox()
        value = number.to_bytes(4, "little")
        lease = sender.put(value)
        file = open_file(lease.block)
        assert inbox.map_file(file)[:4] == value
        os.close(file)
        lease.release()
        sender.close()
    assert open_files() == before


@pytest.mark.slow
def test_mappings_are_limited() -> None:
    before = mapped()
    outbox, inbox = Outbox(), Inbox(limit_bytes=1 << 20)
    leases = [outbox.put(bytes(500_000)) for _ in range(5)]
    for lease in leases:
        assert inbox.view(lease.block) == bytes(500_000)
    assert mapped() <= before + 5 + 2
    large = outbox.put(bytes(4 << 20))
    seen = inbox.view(large.block)
    assert mapped() <= before + 6 + 1
    assert inbox.view(leases[0].block) == bytes(500_000)
    assert seen == bytes(4 << 20)
    outbox.close()


def mapped() -> int:
    """Return the number of mappings of shared memory in this process, of its own files and of others'."""
    gc.collect()
    return sum("memfd:kaas" in line for line in Path("/proc/self/maps").read_text().splitlines())
