"""Bad images: the modules of this repository, and fatbins made of them, with a few things changed at random."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import zstandard

from softgpu.ptx.types import SCALARS

ROOT = Path(__file__).parents[5]
LARGEST_SOURCE_BYTES = 200_000

_TYPES = (*SCALARS, "v2", "v4", "wide", "lo", "hi", "sat", "rn", "ftz")
_NUMBERS = (
    *("0", "-1", "1", "31", "32", "33", "64", "1024", "65535", "2147483647", "4294967295", "-2147483648"),
    *("18446744073709551616", "9" * 40, "0x", "0f7FC00000", "0d7FF0000000000000", "1e400", "0b1", "08"),
)
_JUNK = (
    *'{}()[];,:@!|<>=%._\0\ufeffé\r\\"\x7f',
    *(
        "{{{{",
        ";;",
        "@!",
        "..",
        "/*",
        "*/",
        "//",
        "%tid.x",
        "%p1",
        "%rd1",
        "ret;",
        "exit;",
        "bra",
        "call",
        ".reg .b32 %r<",
    ),
    *(".shared .b8 x[", ".param .u64 ", ".entry k()", ".func f()", "$L0:", ".align 3"),
)
_TOKEN = re.compile(r"[%$\w.]+|\S")


@cache
def sources() -> tuple[str, ...]:
    """The modules, and each kernel of those with several."""
    found = []
    for folder in ("benchmarks", "examples", "kaas", "softgpu", "tests"):
        for path in sorted((ROOT / folder).rglob("*.ptx")):
            if path.stat().st_size > LARGEST_SOURCE_BYTES:
                continue
            text = path.read_text()
            found.append(text)
            head, *entries = re.split(r"(?=^\s*(?:\.visible\s+)?\.entry\b)", text, flags=re.M)
            if len(entries) > 1:
                found += [head + entry for entry in entries]
    return tuple(found)


def fatbin(content: bytes, *, compressed: bool) -> bytes:
    """A fatbin whose only entry is this PTX."""
    frame = zstandard.ZstdCompressor().compress(content) if compressed else content
    flags, stored = (0x8011, len(frame)) if compressed else (0x11, 0)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 80, len(frame), stored, 0, 0, 0, 80, 0, 0, flags, 0, 0)
    entry = entry.ljust(80, b"\0") + frame
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def image(seed: int, number: int) -> bytes:
    """The bad image of this number: always the same."""
    chance = random.Random(f"{seed}/{number}")
    text = chance.choice(sources())
    kind = chance.random()
    if kind < 0.08:
        packed = bytearray(fatbin(_changed(text, chance).encode(), compressed=chance.random() < 0.5))
        for _ in range(chance.randrange(3)):
            _harm_header(packed, chance)
        return bytes(packed)
    if kind < 0.1:
        cubin = bytearray(b"\x7fELF" + bytes(14) + struct.pack("<H", chance.choice([190, 62])) + text[:200].encode())
        return bytes(_flipped(cubin, chance)[: chance.randrange(len(cubin))])
    changed = _changed(text, chance)
    content = changed.encode()
    return bytes(_flipped(bytearray(content), chance)) if chance.random() < 0.1 else content


def _harm_header(packed: bytearray, chance: random.Random) -> None:
    at = chance.randrange(min(len(packed), 110))
    match chance.randrange(3):
        case 0:
            packed[at] = chance.randrange(256)
        case 1:
            packed[at : at + 4] = chance.choice([b"\xff\xff\xff\xff", bytes(4), b"\xff\xff\xff\x7f"])
        case _:
            del packed[chance.randrange(len(packed)) :]
            packed += b"\0"


def _flipped(content: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.randint(1, 4)):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _changed(text: str, chance: random.Random) -> str:
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        text = chance.choice(_CHANGES)(text, chance)
    return text


def _by_lines(change: Callable[[list[str], int, random.Random], None]) -> Callable[[str, random.Random], str]:
    def changed(text: str, chance: random.Random) -> str:
        lines = text.split("\n")
        change(lines, chance.randrange(len(lines)), chance)
        return "\n".join(lines)

    return changed


def _by_token(
    wanted: Callable[[str], bool], replacement: Callable[[str, list[str], random.Random], str]
) -> Callable[[str, random.Random], str]:
    """Another token in the place of one that is wanted."""

    def changed(text: str, chance: random.Random) -> str:
        spans = [found.span() for found in _TOKEN.finditer(text) if wanted(found[0])]
        if not spans:
            return text
        start, end = chance.choice(spans)
        others = [text[a:b] for a, b in chance.sample(spans, min(20, len(spans)))]
        return text[:start] + replacement(text[start:end], others, chance) + text[end:]

    return changed


def _delete(lines: list[str], at: int, chance: random.Random) -> None:
    del lines[at : at + chance.choice([1, 1, 1, 2, 5])]
    lines.append("")


def _double(lines: list[str], at: int, chance: random.Random) -> None:
    lines[at:at] = lines[at : at + chance.choice([1, 1, 2, 8])] * chance.choice([1, 1, 2, 50])


def _move(lines: list[str], at: int, chance: random.Random) -> None:
    lines.insert(chance.randrange(len(lines)), lines.pop(at))


def _swap(lines: list[str], at: int, chance: random.Random) -> None:
    other = chance.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]


def _junk(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    junk = chance.choice(_JUNK) * chance.choice((1, 1, 1, 2, 300))
    return f"{text[:at]}{junk}{text[at:]}"


def _truncate(text: str, chance: random.Random) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _nest(text: str, chance: random.Random) -> str:
    """Braces or calls within each other, deeply."""
    lines = text.split("\n")
    at, depth = chance.randrange(len(lines)), chance.choice([3, 100, 5000])
    opening, closing = chance.choice([("{", "}"), ("(", ")"), ("[", "]"), ("/*", "*/")])
    lines.insert(at, opening * depth + (closing * depth if chance.random() < 0.7 else ""))
    return "\n".join(lines)


def _retyped(token: str, _others: list[str], chance: random.Random) -> str:
    parts = token.split(".")
    parts[chance.randrange(1, len(parts))] = chance.choice(_TYPES)
    return ".".join(parts)


def _is_number(token: str) -> bool:
    return token[:1].isdigit()


def _other(_token: str, others: list[str], chance: random.Random) -> str:
    return chance.choice(others)


_CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    _by_lines(_delete),
    _by_lines(_double),
    _by_lines(_move),
    _by_lines(_swap),
    _junk,
    _truncate,
    _nest,
    _by_token(lambda token: "." in token[1:] and token[0].isalpha(), _retyped),
    _by_token(lambda token: "." in token[1:] and token[0].isalpha(), _other),
    _by_token(lambda token: token.startswith("%"), _other),
    _by_token(lambda token: token.startswith("$"), _other),
    _by_token(_is_number, lambda _token, _others, chance: chance.choice(_NUMBERS)),
    _by_token(_is_number, _other),
    _by_token(lambda _: True, _other),
    _by_token(lambda _: True, lambda _token, _others, _chance: ""),
    _by_token(lambda _: True, lambda token, _others, _chance: f"{token} {token}"),
)
