"""Reads PTX text into a Module, statement by statement."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from softgpu.ptx import limits
from softgpu.ptx.declarations import parameters, variables
from softgpu.ptx.model import Function, Label, Module, Operand, PtxError, Register, Signature, Symbol, Unsupported
from softgpu.ptx.operands import instruction
from softgpu.ptx.types import SCALARS

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)

_BLANK = re.compile(r"\s+")

_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")

_STATEMENT = re.compile(r"[^;]*;")

_LINE_DIRECTIVE = re.compile(r"\.(?:loc|file|version|target|address_size|pragma)\b[^\n]*")

_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")

_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"\n]*)"')

_SECTION = re.compile(r"\.section\b[^{]*\{[^}]*\}")

_SIGNATURE = re.compile(r"\s*\.(?:calltargets\s+([^;]*)|callprototype\s*(?:\(([^)]*)\)\s*)?_\s*(?:\(([^)]*)\))?[^;]*);")

_HEAD = re.compile(r"[^;{=]*")

_FUNCTION = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?(.*)$", re.S)


def parse(text: str) -> Module:
    """Return the module in `text`.

    Raises:
        PtxError: the text is no PTX.
        Unsupported: a directive has no code here.
    """
    if "\0" in text:
        text = text[: text.index("\0")]
    limits.check_text(len(text))
    if not re.search(r"^\s*\.version\s+\d+\.\d+", text, re.M):
        raise PtxError(1, "no .version directive: this is not PTX")
    if re.search(r"^\s*\.address_size\s+32\b", text, re.M):
        raise Unsupported(1, "32-bit addresses")
    parser = _Parser(_COMMENT.sub(_keep_lines, text))
    try:
        return parser.module()
    except (IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        line = parser.at(max(parser.position, parser.counted))
        raise PtxError(line, f"not PTX, here or shortly before: {error}") from error


def _keep_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " "


@dataclass(slots=True)
class _Labels:
    """The labels of one open scope; its instructions start at `start` of the function's body."""

    number: int
    start: int
    names: set[str] = field(default_factory=set)

    def add(self, label: Label) -> None:
        if label.name in self.names:
            raise PtxError(label.line, f"the label {label.name} is there twice")
        self.names.add(label.name)

    def close(self, function: Function) -> None:
        """Make the scope's labels unique: other scopes, such as those of inline assembly, have the same names."""
        if not self.number or not self.names:
            return
        for place in range(self.start, len(function.body)):
            item = function.body[place]
            if isinstance(item, Label):
                targets = tuple(self.unique(name) for name in item.targets)
                function.body[place] = Label(item.line, self.unique(item.name), targets)
            elif item.opcode.startswith(("bra", "brx")):
                operands = tuple(Symbol(self.unique(o.name)) if isinstance(o, Symbol) else o for o in item.operands)
                function.body[place] = replace(item, operands=operands)

    def unique(self, name: str) -> str:
        return f"{name}@{self.number}" if name in self.names else name


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.line = text, 0, 1
        self.counted = 0  # `line` counts the text before this position
        self.statements = 0
        self.result = Module()

    def at(self, position: int) -> int:
        self.line += self.text.count("\n", self.counted, position)
        self.counted = position
        return self.line

    def skip_blank(self) -> bool:
        found = _BLANK.match(self.text, self.position)
        if found:
            self.position = found.end()
        return self.position < len(self.text)

    def count(self, line: int) -> None:
        """Count one more statement, and check the limit."""
        self.statements += 1
        limits.check_statements(self.statements, line)

    def take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.position)
        if not found:
            return None
        self.position = found.end()
        return found[0]

    def directive(self, line: int) -> bool:
        """Take a directive that fills a line, and keep the source lines that -lineinfo adds."""
        text = self.take(_LINE_DIRECTIVE)
        if text is None:
            return False
        if found := _LOC.match(text):
            self.result.places.append((line, int(found[1]), int(found[2])))
        elif found := _FILE.match(text):
            self.result.files[int(found[1])] = found[2]
        return True

    def module(self) -> Module:
        module = self.result
        while self.skip_blank():
            line = self.at(self.position)
            self.count(line)
            if self.directive(line) or self.take(_SECTION) is not None:
                continue
            if self.text[self.position] != ".":
                raise PtxError(
                    line, f"a directive was expected, not {self.text[self.position :].split(chr(10))[0][:60]!r}"
                )
            head = self.take(_HEAD) or ""
            if re.search(r"\.(entry|func)\b", head):
                self.function(module, head, line)
            else:
                self.module_variable(module, head, line)
        return module

    def module_variable(self, module: Module, head: str, line: int) -> None:
        rest = self.take(_STATEMENT)
        if rest is None:
            raise PtxError(line, "the text ends inside a directive")
        text = (head + rest[:-1]).strip()
        alias = re.match(r"\.alias\s+([\w$]+)\s*,\s*([\w$]+)$", text)
        if alias:
            self.alias(module, alias[1], alias[2], line)
            return
        external = text.startswith(".extern")
        plain = re.sub(r"^(?:\.(?:visible|extern|weak|common)\s+)*", "", text)
        for variable in variables(plain, line, external):
            module.variables[variable.name] = variable

    def alias(self, module: Module, name: str, other: str, line: int) -> None:
        function = module.functions.get(other)
        if function is None or not function.has_body:
            raise PtxError(line, f"{name} is to stand for {other}, which has no body here")
        module.functions[name] = function

    def function(self, module: Module, head: str, line: int) -> None:
        found = _FUNCTION.search(head)
        if not found:
            raise PtxError(line, f"not a function header: {' '.join(head.split())[:80]!r}")
        function = Function(found[3], line, found[1] == "entry")
        function.parameters = parameters(found[4] or "", line)
        function.results = parameters(found[2] or "", line)
        for directive in re.finditer(r"\.(maxntid|reqntid)\s+([\d,\s]+)", found[5]):
            threads = 1
            for extent in directive[2].split(","):
                threads *= int(extent) if extent.strip() else 1
            function.max_threads = min(1024, threads)
        if self.text.startswith(";", self.position):
            self.position += 1
            module.functions.setdefault(function.name, function)
            return
        if not self.text.startswith("{", self.position):
            raise PtxError(self.at(self.position), f"the body of {function.name} was expected")
        self.position += 1
        if function.name in module.functions and module.functions[function.name].has_body:
            raise PtxError(line, f"the function {function.name} is there twice")
        function.has_body = True
        if self.result.places:  # the source lines of the function before it end here
            self.result.places.append((line, 0, 0))
        self.body(function)
        module.functions[function.name] = function

    def body(self, function: Function) -> None:
        scopes: list[dict[str, Operand]] = [{}]
        for parameter in (*function.parameters, *function.results):
            if parameter.in_register:
                scopes[0][parameter.name] = Register(parameter.name)
                function.registers[parameter.name] = parameter.type
        cache: dict[str, Operand] = {}
        opened = 0
        labels = [_Labels(0, 0)]
        while scopes:
            if not self.skip_blank():
                raise PtxError(self.at(len(self.text)), f"the text ends inside {function.name}")
            line = self.at(self.position)
            self.count(line)
            character = self.text[self.position]
            if character in "{}":
                self.position += 1
                cache = {}
                if character == "{":
                    opened += 1
                    limits.check_scopes(len(scopes), line)
                    scopes.append({})
                    labels.append(_Labels(opened, len(function.body)))
                else:
                    scopes.pop()
                    labels.pop().close(function)
            elif not self.directive(line):
                length = len(function.body)
                self.statement(function, scopes, opened, cache, line)
                if len(function.body) > length and isinstance(function.body[-1], Label):
                    labels[-1].add(function.body[-1])

    def statement(
        self, function: Function, scopes: list[dict[str, Operand]], opened: int, cache: dict[str, Operand], line: int
    ) -> None:
        label = _LABEL.match(self.text, self.position)
        if label:
            self.position = label.end()
            if self.signature(function, label[1], line):
                return
            table = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, self.position)
            if table:
                self.position = table.end()
            names = tuple(name.strip() for name in table[1].split(",")) if table else ()
            function.body.append(Label(line, label[1], names))
            return
        text = self.take(_STATEMENT)
        if text is None:
            raise PtxError(line, f"the text ends inside {function.name}")
        text = text[:-1].strip()
        if not text:
            return
        if text[0] == ".":
            self.declaration(function, scopes, opened, text, line)
            cache.clear()
        else:
            limits.check_expansion(len(function.body), 0, line)
            limits.check_operands(text, line)
            function.body.append(instruction(text, line, scopes, cache))

    def signature(self, function: Function, name: str, line: int) -> bool:
        """Take the signature of an indirect call, if the label names one."""
        found = _SIGNATURE.match(self.text, self.position)
        if found is None:
            return False
        self.position = found.end()
        if found[1]:
            targets = tuple(one.strip() for one in found[1].split(","))
            function.signatures[name] = Signature(targets=targets)
        else:
            function.signatures[name] = Signature(parameters(found[2] or "", line), parameters(found[3] or "", line))
        return True

    def declaration(
        self, function: Function, scopes: list[dict[str, Operand]], opened: int, text: str, line: int
    ) -> None:
        if not text.startswith(".reg"):
            for variable in variables(text, line, False):
                name = variable.name
                if len(scopes) > 1 and variable.space == "param":
                    # The scope of the next call has the same names.
                    name = f"{name}@{opened}"
                    scopes[-1][variable.name] = Symbol(name)
                function.variables[name] = replace(variable, name=name)
            return
        found = re.match(r"\.reg\s*(?:\.v[24]\s*)?\.(\w+)\s+(.*)$", text, re.S)
        if not found:
            raise Unsupported(line, f"no code for {' '.join(text.split())!r}")
        kind = found[1]
        if kind not in SCALARS:
            function.refusals.append(Unsupported(line, f"no code for {' '.join(text.split())!r}"))
            kind = "b64"  # any type: a kernel that needs the register is refused
        for item in found[2].split(","):
            counted = re.match(r"\s*([\w$%]+)\s*(?:<\s*(\d+)\s*>)?\s*$", item)
            if not counted:
                raise PtxError(line, f"not a register declaration: {text!r}")
            limits.check_registers(len(function.registers) + int(counted[2] or 1), line)
            names = [counted[1]] if counted[2] is None else [f"{counted[1]}{i}" for i in range(int(counted[2]))]
            for plain in names:
                unique = plain if len(scopes) == 1 else f"{plain}@{opened}"
                scopes[-1][plain] = Register(unique)
                function.registers[unique] = kind
