"""The results of a random program: all threads of all blocks at once, as NumPy arrays (blocks, threads) and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from softgpu.tests.compiler.random.ops import BITS, DTYPES, OPS, Array, signed
from softgpu.tests.compiler.random.tables import random_bytes, table_words
from softgpu.tests.compiler.random.tree import (
    ACCUMULATORS,
    COLUMNS,
    LOCAL_BYTES,
    OWN_BYTES,
    SHARED_BYTES,
    TYPES,
    Accumulate,
    Apply,
    Atomic,
    BlockVote,
    Body,
    Call,
    Exchange,
    If,
    Leave,
    Load,
    Loop,
    Place,
    Program,
    Shuffle,
    Source,
    Statement,
    Store,
    Switch,
    Tangle,
    Vote,
    used,
)

COMBINE: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda _, b: b,
    "inc": lambda a, b: np.where(a >= b, a.dtype.type(0), a + a.dtype.type(1)),
    "dec": lambda a, b: np.where((a == 0) | (a > b), b, a - a.dtype.type(1)),
}


@dataclass
class Memory:
    """Arrays of bytes, as the kernel finds them."""

    given: Array
    own: Array
    column: Array
    acc: Array

    @classmethod
    def of(cls, program: Program) -> Memory:
        total = prod(program.grid) * prod(program.block)
        sizes = (16 * total + 2048, OWN_BYTES * total, COLUMNS * 4 * total, 8 * len(ACCUMULATORS))
        return cls(*(random_bytes(size, 10 * program.seed + number) for number, size in enumerate(sizes)))

    def copy(self) -> Memory:
        return Memory(self.given.copy(), self.own.copy(), self.column.copy(), self.acc.copy())


@dataclass
class Frame:
    """A loop: the threads that have left it, and those that wait for its next round."""

    broken: Array
    waiting: Array


@dataclass
class Result:
    memory: Memory
    registers: dict[str, Array]
    ended: Array  # the threads that ended early


@dataclass
class Lanes:
    program: Program
    memory: Memory
    registers: dict[str, Array] = field(default_factory=dict)
    loops: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.program
        self.blocks, self.threads = prod(program.grid), prod(program.block)
        self.shape = (self.blocks, self.threads)
        self.number = np.broadcast_to(np.arange(self.threads, dtype=np.uint32), self.shape)
        self.gid = np.arange(self.blocks * self.threads, dtype=np.uint32).reshape(self.shape)
        self.ended = np.zeros(self.shape, bool)
        word = self.gid[..., None] * np.ones(4, np.uint32)
        word[..., 1], word[..., 3] = self.number, 7
        word[..., 2] = self.gid
        self.local = np.tile(np.ascontiguousarray(word), LOCAL_BYTES // 16).view(np.uint8).ravel()
        word[..., 1], word[..., 2], word[..., 3] = 1, 2, self.number
        self.rows = np.tile(np.ascontiguousarray(word), SHARED_BYTES // 16).view(np.uint8).ravel()
        self.columns = np.repeat(self.gid[:, None, :], COLUMNS, 1).copy().view(np.uint8).ravel()
        self.table = np.array(table_words(), np.uint32).view(np.uint8)

    def start(self) -> None:
        """Set the initial values of the kernel's registers."""
        x, y, _ = (*self.program.block, 1, 1)[:3]
        first = self.memory.given[: 16 * self.gid.size].reshape(*self.shape, 16)

        def at(offset: int, dtype: Any) -> Any:
            size = np.dtype(dtype).itemsize
            return np.ascontiguousarray(first[..., offset : offset + size]).view(dtype)[..., 0]

        gx = self.program.grid[0]
        block = np.arange(self.blocks, dtype=np.uint32)[:, None]
        self.registers = {
            "r0": self.number % x,
            "r1": self.gid,
            "r2": at(0, np.uint32),
            "r3": self.number % 32,
            "r4": self.full(0, np.uint32),
            "r5": self.number // x % y,
            "u0": np.broadcast_to(block % gx, self.shape),
            "u1": self.full(self.memory.given[:4].view(np.uint32)[0], np.uint32),
            "d0": self.gid.astype(np.uint64) * np.uint64(4),
            "d1": at(8, np.uint64),
            "d2": self.full(1, np.uint64),
            "h0": at(4, np.uint16),
            "h1": self.number.astype(np.uint16),
            "f0": self.number.astype(np.float32),
            "f1": at(0, np.float32),
            "f2": self.full(1, np.float32),
            "g0": self.gid.astype(np.float64),
            "g1": at(8, np.float64),
            "x0": self.number.astype(np.float16),
            "x1": at(6, np.float16),
            "p0": self.number % 2 == 1,
            "p1": self.number < 20,
            "p2": at(0, np.int32) < 0,
        }
        self.registers = {
            name: np.asarray(value, DTYPES["r" if name[0] == "u" else name[0]])
            for name, value in self.registers.items()
        }

    def full(self, value: Any, dtype: Any) -> Array:
        return np.full(self.shape, value, dtype)

    # --- operands

    def source(self, value: Source, kind: str) -> Array:
        if isinstance(value, str):
            return self.registers[value]
        bits = self.full(value, f"u{BITS[kind] // 8}")
        return bits.view(DTYPES[kind]) if kind in "fgx" else bits

    def write(self, name: str, value: Array, mask: Array) -> None:
        old = self.registers[name]
        self.registers[name] = np.where(mask, value, old).astype(old.dtype)

    def holds(self, condition: str) -> Any:
        return self.registers[condition] & 1 == 1

    def guarded(self, mask: Array, guard: str) -> Array:
        if not guard:
            return mask
        held = self.registers[guard.lstrip("!")]
        return mask & (~held if guard[0] == "!" else held)

    # --- memory

    def bytes_of(self, place: Place, size: int) -> tuple[Array, Array]:
        """The memory, and for each thread where in it the first byte lies."""
        by = self.registers[place.by].astype(np.int64) if place.by else np.zeros(self.shape, np.int64)
        gid, number = self.gid.astype(np.int64), self.number.astype(np.int64)
        match place.space:
            case "in":
                return self.memory.given, (by & 63) * 16 + gid * place.scale + place.offset
            case "table":
                return self.table, (by & 63) * 16 + place.offset
            case "own":
                return self.memory.own, gid * OWN_BYTES + (by & (OWN_BYTES - size)) + place.offset
            case "local":
                return self.local, gid * LOCAL_BYTES + (by & (LOCAL_BYTES - size)) + place.offset
            case "shared":
                return self.rows, gid * SHARED_BYTES + (by & (SHARED_BYTES - size)) + place.offset
            case "column":
                return self.memory.column, (place.offset * self.gid.size + gid) * 4
            case _:
                block = gid // self.threads
                return self.columns, ((block * COLUMNS + place.offset) * self.threads + number) * 4

    def load(self, place: Place, size: int, whole: int) -> Array:
        memory, at = self.bytes_of(place, whole)
        return memory[at[..., None] + np.arange(size)]

    def store(self, place: Place, content: Array, mask: Array, whole: int) -> None:
        memory, at = self.bytes_of(place, whole)
        where = at[..., None] + np.arange(content.shape[-1])
        memory[where[mask]] = content[mask]

    def move(self, statement: Load | Store, mask: Array) -> None:
        size = int(statement.type[1:]) // 8
        dtype = np.dtype(f"{'i' if statement.type[0] == 's' else 'f' if statement.type[0] == 'f' else 'u'}{size}")
        kind = TYPES[statement.type]
        mask = self.guarded(mask, statement.guard)
        if isinstance(statement, Store):
            whole = size * len(statement.sources)
            cut = [self.registers[name].astype(f"u{size}")[..., None].view(np.uint8) for name in statement.sources]
            self.store(statement.place, np.concatenate(cut, -1), mask, whole)
            return
        whole = size * len(statement.targets)
        content = np.ascontiguousarray(self.load(statement.place, whole, whole)).view(dtype)
        for index, name in enumerate(statement.targets):
            value = content[..., index]
            wide = value.astype(np.int64).astype(DTYPES[kind]) if dtype.kind == "i" else value
            self.write(name, wide, mask)

    def atomic(self, s: Atomic, mask: Array) -> None:
        size = int(s.type[1:]) // 8
        kind = s.target[0]
        old = np.ascontiguousarray(self.load(s.place, size, size)).view(f"u{size}")[..., 0]
        values = [self.source(value, kind) for value in s.sources]
        if s.op == "cas":
            new = np.where(old == values[0], values[1], old)
        elif s.type[0] == "s":
            new = COMBINE[s.op](signed(old), signed(values[0])).view(old.dtype)
        else:
            new = COMBINE[s.op](old, values[0])
        self.store(s.place, np.ascontiguousarray(new)[..., None].view(np.uint8), mask, size)
        self.write(s.target, old, mask)

    def accumulate(self, s: Accumulate, mask: Array) -> None:
        op, kind = ACCUMULATORS[s.cell].split(".")
        size = int(kind[1:]) // 8
        cell = self.memory.acc[8 * s.cell : 8 * s.cell + size].view(f"{'i' if kind[0] == 's' else 'u'}{size}")
        values = self.source(s.source, "d" if size == 8 else "r").astype(cell.dtype)[mask]
        for value in values:
            cell[:] = COMBINE[op](cell, value)

    # --- statements: each gives the threads that go on behind it

    def body(self, body: Body, mask: Array) -> Array:
        for statement in body:
            if not mask.any():
                break
            mask = self.statement(statement, mask)
        return mask

    def statement(self, statement: Statement, mask: Array) -> Array:
        match statement:
            case Apply(name, targets, sources, guard):
                op = OPS[name]
                values = op.compute(*(self.source(v, kind) for v, kind in zip(sources, op.operands, strict=True)))
                results = values if isinstance(values, tuple) else (values,)
                for target, value in zip(targets, results, strict=True):
                    self.write(target, value, self.guarded(mask, guard))
            case Load() | Store():
                self.move(statement, mask)
            case Atomic():
                self.atomic(statement, mask)
            case Accumulate():
                self.accumulate(statement, mask)
            case Call():
                self.call(statement, mask)
            case Shuffle() | Vote():
                self.warp(statement, mask)
            case Exchange() | BlockVote():
                self.block(statement, mask)
            case Leave(how, condition):
                return self.leave(how, mask & self.holds(condition), mask)
            case If(condition, then, otherwise):
                taken = mask & self.holds(condition)
                return self.body(then, taken) | self.body(otherwise, mask & ~taken)
            case Loop():
                return self.loop(statement, mask)
            case Switch(index, cases):
                chosen = self.registers[index] % len(cases)
                out = np.zeros_like(mask)
                for number, case in enumerate(cases):
                    out |= self.body(case, mask & (chosen == number))
                return out
            case Tangle():
                return self.tangle(statement, mask)
        return mask

    def leave(self, how: str, who: Array, mask: Array) -> Array:
        match how:
            case "break":
                self.loops[-1].broken |= who
            case "continue":
                self.loops[-1].waiting |= who
            case _:
                self.ended |= who
        return mask & ~who

    def loop(self, s: Loop, mask: Array) -> Array:
        limit = (self.source(s.count, "r") & 7).astype(int)
        if s.bottom:
            limit = np.maximum(limit, 1)
        frame = Frame(np.zeros_like(mask), np.zeros_like(mask))
        self.loops.append(frame)
        done = mask & (limit <= 0)
        inside, turns = mask & ~done, 0
        while inside.any():
            frame.waiting = np.zeros_like(mask)
            inside = self.body(s.body, inside) | frame.waiting
            turns += 1
            done |= inside & (turns >= limit)
            inside &= turns < limit
        self.loops.pop()
        return done | frame.broken

    def tangle(self, s: Tangle, mask: Array) -> Array:
        left = (self.source(s.count, "r") & 7).astype(int)
        second = mask & self.holds(s.condition)
        first, done = mask & ~second, np.zeros_like(mask)
        while (first | second).any():
            first = self.body(s.first, first)
            left = left - first
            done |= first & (left <= 0)
            second = self.body(s.second, second | (first & (left > 0)))
            left = left - 2 * second
            done |= second & (left <= 0)
            first, second = second & (left > 0), np.zeros_like(mask)
        return done

    def call(self, s: Call, mask: Array) -> None:
        function = self.program.functions[s.function]
        outer, ended, loops = self.registers, self.ended, self.loops
        inner = {name: self.full(0, DTYPES["r" if name[0] == "u" else name[0]]) for name in used(function.body)}
        self.registers = inner | {"r0": outer[s.arguments[0]], "r1": outer[s.arguments[1]]}
        self.ended, self.loops = np.zeros_like(mask), []
        self.body(function.body, mask)
        result = self.registers["r0"]
        self.registers, self.ended, self.loops = outer, ended, loops
        self.write(s.target, result, mask)

    # --- lanes that see each other

    def warps(self) -> list[tuple[int, slice]]:
        return [(block, slice(at, at + 32)) for block in range(self.blocks) for at in range(0, self.threads, 32)]

    def warp(self, s: Shuffle | Vote, mask: Array) -> None:
        for block, lanes in self.warps():
            here = np.zeros(32, bool)
            count = mask[block, lanes].size
            here[:count] = mask[block, lanes]
            if not here.any():
                continue
            source = np.zeros(32, self.registers[s.source].dtype)
            source[:count] = self.registers[s.source][block, lanes]
            only = np.zeros_like(mask)
            only[block, lanes] = here[:count]
            if isinstance(s, Shuffle):
                by = np.zeros(32, np.uint32)
                by[:count] = self.source(s.by, "r")[block, lanes]
                results: tuple[Array, ...] = _shuffle(s, source, by, here)
                targets: tuple[str, ...] = (s.target, s.fits)
            else:
                results, targets = _vote(s.mode, source, here), s.targets
            for target, values in zip(targets, results, strict=True):
                spread = np.zeros(self.shape, values.dtype)
                spread[block, lanes] = values[:count]
                self.write(target, spread, only)

    def block(self, s: Exchange | BlockVote, mask: Array) -> None:
        source = self.registers[s.source]
        if isinstance(s, Exchange):
            other = self.registers[s.by] if s.by else self.number + np.uint32(s.shift)
            rows = np.arange(self.blocks)[:, None]
            self.write(s.target, source[rows, other % self.threads], mask)
            return
        summaries: dict[str, Callable[[Array], int]] = {
            "popc": np.count_nonzero,
            "and": lambda row: int(row.all()),
            "or": lambda row: int(row.any()),
            "sum": lambda row: int(row.sum(dtype=np.uint64)) & 0xFFFFFFFF,
        }
        value = self.full(0, np.uint32)
        for block in range(self.blocks):
            value[block] = summaries[s.mode](source[block])
        self.write(s.target, value, mask)


def _shuffle(s: Shuffle, source: Array, by: Array, here: Array) -> tuple[Array, Array]:
    values, fits = np.zeros(32, np.uint32), np.zeros(32, bool)
    for lane in range(32):
        amount, first = int(by[lane]) & 31, lane // s.width * s.width
        last = first + s.width - 1
        match s.mode:
            case "up":
                other = lane - amount
                fits[lane] = other >= first
            case "down":
                other = lane + amount
                fits[lane] = other <= last
            case "bfly":
                other = lane ^ amount
                fits[lane] = other <= last
            case _:
                other = first + amount % s.width
                fits[lane] = True
        other = other if fits[lane] else lane
        values[lane] = source[other] if here[other] else 0
    return values, fits


def _vote(mode: str, source: Array, here: Array) -> tuple[Array, ...]:
    values = source[here]
    everyone = int(sum(1 << lane for lane in np.nonzero(here)[0].tolist()))
    match mode.split("."):
        case ["ballot"]:
            bits = sum(1 << lane for lane in range(32) if here[lane] and source[lane])
            return (np.full(32, bits, np.uint32),)
        case ["all"]:
            return (np.full(32, values.all()),)
        case ["any"]:
            return (np.full(32, values.any()),)
        case ["uni"]:
            return (np.full(32, values.all() or not values.any()),)
        case ["match", which]:
            low = source & 3
            if which == "all":
                same = bool((low[here] == low[here][0]).all())
                return np.full(32, everyone if same else 0, np.uint32), np.full(32, same)
            masks = [sum(1 << k for k in range(32) if here[k] and low[k] == low[lane]) for lane in range(32)]
            return (np.array(masks, np.uint32),)
        case [_, op, kind]:
            typed = values.view(np.int32) if kind[0] == "s" else values
            result = typed[0]
            for value in typed[1:]:
                result = COMBINE[op](result, value)
            return (np.full(32, np.asarray(result).view(np.uint32)),)
    raise AssertionError(mode)


def run(program: Program, memory: Memory) -> Result:
    """Return the results of the kernel; `memory` is changed."""
    with np.errstate(all="ignore"):
        lanes = Lanes(program, memory)
        lanes.start()
        lanes.body(program.body, np.ones(lanes.shape, bool))
    return Result(memory, lanes.registers, lanes.ended)
