"""Reads PTX text as directives, labels and instructions, and refuses what a compiler of PTX could read in another way.

Comments, section contents and debug directives do not reach the output, so that no difference in reading them counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from kaas.errors import CannotFence

NAME = r"[A-Za-z_$%][\w$]*"
INTEGER = r"(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?"
OWN = "kaas_window"
"""The beginning of the names of the rewriter's own variables; `%kaas_` begins those of its registers."""

_TEXT_CHARACTERS = 32 << 20
_INSTRUCTION_CHARACTERS = 1 << 15
_SCOPES = 64
_SKIPPED = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?(?:\*/|\Z)', re.S)
_STRANGE = re.compile(r"[^\n\t -~]|[\\#`'?^~]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./, -]|/(?=/)")
_BLANK = re.compile(r"\s*")
_STATEMENT = re.compile(r'[^;"]*;')
_HEAD = re.compile(r'[^;{}="]*')
_LABEL = re.compile(rf"({NAME})\s*:(?!:)")
_DIRECTIVE = re.compile(r"\.(\w+)")
_INSTRUCTION = re.compile(rf"(?:@\s*(!?)\s*({NAME})\s+)?([a-z]\w*)((?:\s*\.[\w:]+)*)(?![\w$%.])\s*(.*)$", re.S)
_VALUE = r"[!-]?\s?[\w$%.]+(?:\s?[|+-]\s?-?\s?[\w$%.]+)?"
_OPERAND = re.compile(rf"\s?(\{{[^{{}}\[\]()]*\}}|\[[^{{}}\[\]()]*\]|\([^{{}}\[\]()]*\)|{_VALUE})\s?(,|$)")
_ADDRESS = re.compile(rf"\[\s*({NAME}|{INTEGER})\s*(?:([+-])\s*(-?)\s*({INTEGER}))?\s*\]$")
_LINE = re.compile(
    rf"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+{NAME}(?:\s*\+\s*\d+)?\s*,"
    r"\s*inlined_at\s+\d+\s+\d+\s+\d+)?(?!\w)"
)
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"\n]*)"(?:\s*,\s*\d+\s*,\s*\d+)?')
_SECTION = re.compile(r"\.section\s+[\w.]+\s*\{[^{}\"]*\}")
_PRAGMA = re.compile(r'\.pragma\s+("[\w .,]*")\s*;')

_OFFSETS = range(-(1 << 31), 1 << 31)


@dataclass(slots=True)
class Statement:
    """A part of a text. kind: "label", "open", "close", "declaration", "directive" or "instruction"."""

    kind: str
    line: int
    text: str


@dataclass(slots=True)
class PtxInstruction:
    """One instruction. guard: as written, "@!%p" or "". words: the parts of its opcode."""

    line: int
    text: str
    guard: str
    opcode: str
    words: tuple[str, ...]
    operands: list[str]

    def refuse(self, why: str) -> NoReturn:
        """Raise CannotFence about this instruction."""
        refuse(self.line, self.text, why)

    def written(self, operands: list[str], opcode: str = "") -> str:
        """Return the instruction's text with other operands, and perhaps another opcode."""
        parts = (self.guard, opcode or self.opcode, ", ".join(operands))
        return f"{' '.join(part for part in parts if part)};"


def error(line: int, text: str, why: str) -> CannotFence:
    """Return the error about the statement that begins at this line."""
    short = " ".join(text[:1000].split())[:120]
    return CannotFence(f"line {line}: {why}: {short!r}", line=line, instruction=short, reason=why)


def refuse(line: int, text: str, why: str) -> NoReturn:
    """Raise CannotFence about the statement that begins at this line."""
    raise error(line, text, why)


def cleaned(ptx: str) -> str:
    """Return the text without comments, with as many lines.

    Raises:
        CannotFence: the text has characters that PTX does not need, or names that are the rewriter's own.
    """
    text = ptx.partition("\0")[0]
    if len(text) > _TEXT_CHARACTERS:
        refuse(1, "", f"the text has more than {_TEXT_CHARACTERS} characters")
    text = _SKIPPED.sub(_without_comment, text)
    text = text.replace("\r", " ").replace("\f", " ").replace("\v", " ")
    strange = _STRANGE.search(text)
    if strange:
        _refuse_at(text, strange.start(), f"the character {strange[0]!r} is not of PTX")
    for own in (OWN, "%kaas_"):
        if own in text:
            _refuse_at(text, text.index(own), f"names with {own} are KaaS's own")
    return text


def _without_comment(match: re.Match[str]) -> str:
    found = match[0]
    if found[0] == '"':
        return f'"{_NOT_IN_NAMES.sub("_", found[1:-1])}"'  # neither quotes nor comments in there
    return "\n" * found.count("\n") or " "


def _refuse_at(text: str, place: int, why: str) -> NoReturn:
    start = text.rfind("\n", 0, place) + 1
    refuse(text.count("\n", 0, place) + 1, text[start : start + 120].partition("\n")[0], why)


class PtxReader:
    """Takes one statement after the other from a cleaned text."""

    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self._line, self._counted = 1, 0

    @property
    def line(self) -> int:
        """The line of the place, from 1."""
        self._line += self.text.count("\n", self._counted, self.place)
        self._counted = self.place
        return self._line

    def refuse(self, why: str) -> NoReturn:
        """Raise CannotFence about the text from here."""
        line = self.line
        refuse(line, self.text[self.place : self.place + 200].partition("\n")[0], why)

    def more(self) -> bool:
        """Skip blanks. Return True if text is left."""
        found = _BLANK.match(self.text, self.place)
        assert found is not None
        self.place = found.end()
        return self.place < len(self.text)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of a pattern from here, and go behind it."""
        found = pattern.match(self.text, self.place)
        if found is not None:
            self.place = found.end()
        return found

    def to_semicolon(self) -> str:
        """Return the statement from here, with its semicolon."""
        found = self.take(_STATEMENT)
        if found is None:
            self.refuse("the statement does not end")
        return found[0]

    def head(self) -> str:
        """Return the text up to a semicolon, brace or initial value."""
        found = self.take(_HEAD)
        assert found is not None
        return found[0]

    def debug_directive(self) -> str | None:
        """Take a directive of lines, files, sections or hints. Return what is kept of it; None: it is another text."""
        found = _DIRECTIVE.match(self.text, self.place)
        match found[1] if found else "":
            case "loc":
                taken = self.take(_LINE)
                kept = "" if taken is None else f".loc {taken[1]} {taken[2]} {taken[3]}\n"
            case "file":
                taken = self.take(_FILE)
                kept = "" if taken is None else f'.file {taken[1]} "{taken[2]}"\n'
            case "section":
                taken, kept = self.take(_SECTION), "\n"
            case "pragma":
                taken = self.take(_PRAGMA)
                kept = '.pragma "nounroll";\n' if taken is not None and taken[1] == '"nounroll"' else ""
            case _:
                return None
        if taken is None:
            self.refuse("a directive of another form than known")
        return kept

    def body(self) -> list[Statement]:
        """Return the statements of a function from behind its opening brace, its closing brace left out."""
        out: list[Statement] = []
        depth = 1
        while self.more():
            line = self.line
            character = self.text[self.place]
            if character in "{}":
                self.place += 1
                depth += 1 if character == "{" else -1
                if depth == 0:
                    return out
                if depth > _SCOPES:
                    self.refuse(f"more than {_SCOPES} scopes within each other")
                out.append(Statement("open" if character == "{" else "close", line, character))
            elif character == ";":
                self.place += 1
            elif character == ".":
                kept = self.debug_directive()
                kind = "declaration" if kept is None else "directive"
                out.append(Statement(kind, line, self.to_semicolon() if kept is None else kept))
            elif label := self.take(_LABEL):
                out.append(Statement("label", line, label[1]))
                self.more()
                if _TABLE.match(self.text, self.place):
                    out.append(Statement("table", line, self.to_semicolon()))
            else:
                out.append(Statement("instruction", line, self.to_semicolon()))
        raise error(self.line, "", "the text ends inside a function")


_TABLE = re.compile(r"\.(?:branchtargets|calltargets|callprototype)\b")


def instruction(statement: Statement) -> PtxInstruction:
    """Return the instruction of a statement."""
    text = " ".join(statement.text[:-1].split())
    found = _INSTRUCTION.match(text)
    if found is None or len(text) > _INSTRUCTION_CHARACTERS:
        refuse(statement.line, text, "no instruction" if found is None else "an instruction too long")
    negated, guard, base, words, rest = found.groups()
    opcode = base + "".join(words.split())
    made = PtxInstruction(statement.line, text, f"@{negated}{guard}" if guard else "", opcode, (), [])
    made.words = tuple(opcode.split("."))
    place = 0
    while place < len(rest):
        operand = _OPERAND.match(rest, place)
        if operand is None or (operand[2] and operand.end() == len(rest)):
            made.operands = []
            break
        made.operands.append(operand[1])
        place = operand.end()
    if rest and not made.operands:
        made.operands = [_UNREADABLE]
    return made


_UNREADABLE = "[?]"
"""Stands for operands that are not understood: refused with an opcode that may touch memory, or any other."""


def is_address(operand: str) -> bool:
    """Return True for an operand in brackets."""
    return operand[0] == "["


def address(one: PtxInstruction, operand: str) -> tuple[str, int]:
    """Return the base of an address operand, a name or a number, and its offset in bytes."""
    found = _ADDRESS.match(operand)
    if found is None:
        one.refuse(f"the address {operand} is not understood")
    base, sign, minus, digits = found.groups()
    offset = 0
    if digits is not None:
        offset = integer(digits, one.line, one.text) * (-1 if (sign == "-") != (minus == "-") else 1)
    if offset not in _OFFSETS:
        one.refuse("the offset of an address has more than 32 bits")
    return base, offset


def integer(digits: str, line: int, text: str) -> int:
    """Return the value of an integer of PTX without a sign: decimal, octal, hexadecimal or binary."""
    plain = digits.removesuffix("U")
    octal = len(plain) > 1 and plain[0] == "0" and plain[1].isdigit()
    try:
        return int(plain, 8 if octal else 0)
    except ValueError:
        refuse(line, text, f"{digits} is no number")
