"""Writes the LLVM function of a kernel: one call runs one warp; lanes that diverge run block by block under masks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softgpu.analysis import flow
from softgpu.analysis import plan as analysis
from softgpu.analysis.blocks import EXIT, Branch, Jump, Step, Switch, bits
from softgpu.analysis.shapes import WARP
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.loads import load
from softgpu.codegen.special import WARP_FIELDS, special, warp_field
from softgpu.codegen.stores import store
from softgpu.codegen.values import VECTOR
from softgpu.instructions import operation
from softgpu.ptx.kernel import Kernel
from softgpu.ptx.model import PtxError
from softgpu.target import ENTRY, GLOBALS, PROBES, Target

ROUNDS = 1024
"""After so many rounds of its loops a warp lets other warps run, in case it waits for them."""


MOST_LOOKS = 8
"""A block's end has its own code to look for waiting lanes at up to so many places; with more places it is shared."""

DOUBLED_STEPS = 1000
"""Up to so many instructions of a kernel get additional code for a whole warp."""


@dataclass(frozen=True, slots=True)
class Code:
    """The LLVM IR of a kernel.

    imports: the functions of the runner that it calls. needs_globals: the loader must put the address of the module's
    variables into GLOBALS.
    """

    text: str
    imports: tuple[str, ...]
    needs_globals: bool


def generate(
    kernel: Kernel, block: tuple[int, int, int], target: Target, *, memcheck: bool = False, fenced: bool = False
) -> Code:
    """Return the code of `kernel` for blocks of this shape. memcheck: check every access. fenced: see `fences`.

    Raises:
        PtxError: the kernel has an error that only code generation finds.
    """
    graph = flow.build(kernel, operation)
    emitter = Emitter(kernel, analysis.plan(graph, kernel, block), target, block, special, memcheck, fenced)
    return _KernelWriter(emitter).write()


def _emit(e: Emitter, step: Step) -> None:
    """Emit a step, and add its line to an error. An error that is no PtxError is a mistake of this code."""
    try:
        step.op.family.emit(e, step)
    except PtxError as error:
        raise PtxError(error.line or step.inst.line, error.message) from error
    except Exception as error:
        error.add_note(f"line {step.inst.line}: {' '.join(step.inst.text.split())}")
        raise


class _KernelWriter:
    def __init__(self, emitter: Emitter) -> None:
        self.e = emitter
        self.plan = emitter.plan
        self.blocks = emitter.plan.flow.blocks
        self.waiting_places = sorted({place for waiting in self._places() for place in bits(waiting)})
        self.chain = self._chain()
        self.doubled = self._doubled()
        self.can_loop = any(self._is_back(i, t) for i, b in enumerate(self.blocks) for t in b.successors)

    def write(self) -> Code:
        e = self.e
        e.put("br label %b0")
        for index in range(len(self.blocks)):
            self._block(index)
        self._looks()
        body = "\n".join(e.lines)
        head = "\n".join(self._head())
        declares = "\n".join(sorted(e.declared))
        functions = "\n".join(e.functions.values())
        variable = f"@{GLOBALS} = global ptr null\n" if e.uses_globals else ""
        text = (
            f"{variable}define void @{ENTRY}(ptr noalias readonly %params, ptr noalias %w) {PROBES} {{\n"
            f'{head}\n{body}\n}}\n{functions}\n{declares}\n!0 = !{{}}\n!1 = !{{!"branch_weights", i32 1, i32 4096}}\n'
        )
        imports = {line.split("@")[1].split("(")[0] for line in e.declared if "@sg_rt_" in line}
        return Code(text, tuple(sorted(imports)), e.uses_globals)

    def _doubled(self) -> set[int]:
        """Return the blocks that have a second body for all 32 lanes.

        That body has no masks, which are slow on a processor without mask registers. Inner loops come first, as far as
        DOUBLED_STEPS allows.
        """
        e = self.e
        if e.memcheck or e.target.has_mask_registers:
            return set()
        found = [index for index in range(len(self.blocks)) if not self.plan.is_full(index) and self._uses_mask(index)]
        chosen, steps = set(), 0
        for index in sorted(found, key=lambda index: -len(self.blocks[index].loops)):
            steps += len(self.blocks[index].steps)
            if steps > DOUBLED_STEPS:
                break
            chosen.add(index)
        return chosen

    def _uses_mask(self, index: int) -> bool:
        """Return True if the code of a block is longer if only some lanes run."""
        steps = self.blocks[index].steps
        kept = any(self.plan.is_live_elsewhere(index, name) for step in steps for name in step.writes)
        return kept or any(step.op.family.emit in (load, store) for step in steps)

    def _places(self) -> list[int]:
        """Return the sets of blocks at which lanes may wait."""
        places = list(self.plan.pending.waiting)
        for index, block in enumerate(self.blocks):
            for target in block.successors:
                if target != EXIT and not self._goes_straight(index, target):
                    places.append(1 << target)
        return places

    def _goes_straight(self, here: int, target: int) -> bool:
        """Return True if lanes go from one block to the other without waiting at its start."""
        pending = self.plan.pending
        if not pending.is_direct(here, target) or pending.waiting[here] >> target & 1:
            return False
        others = [other for other in self.blocks[here].successors if other not in (EXIT, target)]
        return here not in self.plan.divergent or not others

    def _head(self) -> list[str]:
        """Return the entry block: stack slots, then the values that every block needs.

        All that can be read is cleared. A register without a value would be what the stack or the processor still has
        of another program, in lanes that have not written it: shuffles read them, and so may the program.
        """
        e = self.e
        e.lines, e.cache = ["entry:"], {}
        for name in ("%in0", "%in1", "%in2", "%in3", "%out"):
            e.put(f"{name} = alloca [{WARP * 8 * 4} x i8], align 64")
        e.put(f"store <{e.out_bytes} x i8> zeroinitializer, ptr %out")
        e.put(f"%addresses = alloca <{WARP} x i64>, align 64")
        e.put("%mask = alloca i32")
        for place in self.waiting_places:
            e.put(f"%m{place} = alloca i32")
            e.put(f"store i32 0, ptr %m{place}")
        for name in self.plan.flow.register_bit:
            for slot, kind in e.slots(name):
                e.put(f"{slot} = alloca {kind}")
                e.put(f"store {kind} zeroinitializer, ptr {slot}")
        live = "-1" if self.plan.whole_warps else warp_field(e, WARP_FIELDS["live"], "i32")
        e.put(f"store i32 {live}, ptr %mask")
        self._load_bases()
        if self.can_loop:
            e.put("%rounds = alloca i32")
            e.put(f"store i32 {ROUNDS}, ptr %rounds")
        return e.lines

    def _load_bases(self) -> None:
        e = self.e
        for name in ("shared", "local"):
            pointer = e.new(f"getelementptr i8, ptr %w, i64 {WARP_FIELDS[name]}")
            loaded = f"load ptr, ptr {pointer}, !invariant.load !0"
            if name == "shared":
                e.put(f"%shared = {loaded}")
            else:
                e.put(f"%local = ptrtoint ptr {e.new(loaded)} to i64")
        if e.fenced:
            for name, field in (("%window", "window_base"), ("%within", "window_mask")):
                pointer = e.new(f"getelementptr i8, ptr %w, i64 {WARP_FIELDS[field]}")
                e.put(f"{name} = load i64, ptr {pointer}, !invariant.load !0")
        if e.uses_globals:
            e.put(f"%globals = ptrtoint ptr {e.new(f'load ptr, ptr @{GLOBALS}, !invariant.load !0')} to i64")

    def _block(self, index: int) -> None:
        e = self.e
        if index in self.waiting_places:
            e.start(f"enter{index}")
            e.put(f"store i32 {e.new(f'load i32, ptr %m{index}')}, ptr %mask")
            e.put(f"store i32 0, ptr %m{index}")
            e.put(f"br label %b{index}")
        e.start(f"b{index}")
        if index in self.doubled:
            full = e.new(f"icmp eq i32 {e.new('load i32, ptr %mask')}, -1")
            e.put(f"br i1 {full}, label %full{index}, label %some{index}")
            e.start(f"full{index}")
            self._body(index, all_run=True)
            e.start(f"some{index}")
        self._body(index, all_run=False)

    def _body(self, index: int, *, all_run: bool) -> None:
        e, block = self.e, self.blocks[index]
        e.block, e.all_run, e.registers, e.written, e.cache = index, all_run, {}, set(), {}
        for step in block.steps:
            _emit(e, step)
        e.flush(self.plan.flow.live_out[index])
        match block.end:
            case Jump(target):
                self._go(index, target)
            case Branch():
                self._branch(index, block.end)
            case Switch():
                self._switch(index, block.end)

    # --- ends of blocks

    def _is_back(self, here: int, target: int) -> bool:
        return target != EXIT and target <= here

    def _rest(self, here: int, targets: Iterable[int]) -> None:
        """On a branch back to the head of a loop, let other warps run after many rounds; the launch may end there."""
        if not any(self._is_back(here, target) for target in targets):
            return
        e = self.e
        on, rest = e.fresh("on"), e.fresh("rest")
        left = e.new(f"sub i32 {e.new('load i32, ptr %rounds')}, 1")
        e.put(f"store i32 {left}, ptr %rounds")
        e.put(f"br i1 {e.new(f'icmp eq i32 {left}, 0')}, label %{rest}, label %{on}, !prof !1")
        e.start(rest)
        e.put(f"store i32 {ROUNDS}, ptr %rounds")
        e.call("sg_rt_rest", [("ptr", "%w")])
        e.put(f"br label %{on}")
        e.start(on)

    def _go(self, here: int, target: int) -> None:
        """Let all running lanes go to `target`."""
        e = self.e
        self._rest(here, (target,))
        if e.all_run and target != EXIT:  # no lane waits
            e.put(f"br label %{'full' if target in self.doubled else 'b'}{target}")
        elif e.all_run:
            e.put("ret void")
        elif not self.plan.pending.is_direct(here, target):
            if target != EXIT:
                self._leave(here, target, e.mask())
            self._look(here, (target,))
        elif target == EXIT:
            e.put("ret void")
        elif self.plan.pending.waiting[here] >> target & 1:
            self._leave(here, target, e.mask())
            e.put(f"br label %enter{target}")
        else:
            e.put(f"br label %b{target}")

    def _leave(self, here: int, target: int, lanes: str) -> None:
        """Add lanes to those that wait at `target`."""
        e = self.e
        if self.plan.pending.waiting[here] >> target & 1:
            lanes = e.new(f"or i32 {e.new(f'load i32, ptr %m{target}')}, {lanes}")
        e.put(f"store i32 {lanes}, ptr %m{target}")

    def _branch(self, here: int, end: Branch) -> None:
        e = self.e
        condition = e.register(end.register)
        taken, otherwise = (end.otherwise, end.taken) if end.negated else (end.taken, end.otherwise)
        if here not in self.plan.divergent:
            yes, no = e.fresh("yes"), e.fresh("no")
            e.put(f"br i1 {condition.parts[0]}, label %{yes}, label %{no}")
            cache = dict(e.cache)
            for label, target in ((yes, taken), (no, otherwise)):
                e.cache = dict(cache)
                e.start(label)
                self._go(here, target)
            return
        mask = e.mask()
        choice = e.pack(e.vector(condition))
        if e.is_full and not self.doubled.isdisjoint({here, taken, otherwise}):
            self._stay_together(here, choice, taken, otherwise)
        leaving = e.new(f"and i32 {mask}, {choice}")
        staying = e.new(f"xor i32 {mask}, {leaving}")
        self._part(here, {taken: leaving, otherwise: staying})

    def _stay_together(self, here: int, choice: str, taken: int, otherwise: int) -> None:
        """Let all 32 lanes leave together if they choose alike; the code after this is for lanes that diverge."""
        e = self.e
        before, e.all_run = e.all_run, True
        for lanes, target in (("-1", taken), ("0", otherwise)):
            alike, on = e.fresh("alike"), e.fresh("on")
            e.put(f"br i1 {e.new(f'icmp eq i32 {choice}, {lanes}')}, label %{alike}, label %{on}")
            cache = dict(e.cache)
            e.start(alike)
            self._go(here, target)
            e.cache = cache
            e.start(on)
        e.all_run = before

    def _part(self, here: int, lanes: dict[int, str]) -> None:
        """Let lanes go to different blocks; of the blocks with lanes, the first in order runs next."""
        e = self.e
        self._rest(here, lanes)
        targets = [target for target in lanes if target != EXIT]
        if len(targets) == 1 and self._goes_straight(here, targets[0]):
            none = e.fresh("none")
            e.put(f"store i32 {lanes[targets[0]]}, ptr %mask")
            e.put(f"br i1 {e.new(f'icmp ne i32 {lanes[targets[0]]}, 0')}, label %b{targets[0]}, label %{none}")
            e.start(none)
            self._look(here, (EXIT,))
            return
        for target in targets:
            self._leave(here, target, lanes[target])
        self._look(here, lanes)

    def _switch(self, here: int, end: Switch) -> None:
        e = self.e
        index = e.cast(e.register(end.register), "i32")
        targets = tuple(dict.fromkeys(end.targets))
        if here not in self.plan.divergent:
            labels = {target: e.fresh("case") for target in targets}
            cases = " ".join(f"i32 {i}, label %{labels[t]}" for i, t in enumerate(end.targets[:-1]))
            e.put(f"switch i32 {index.parts[0]}, label %{labels[end.targets[-1]]} [ {cases} ]")
            cache = dict(e.cache)
            for target, label in labels.items():
                e.cache = dict(cache)
                e.start(label)
                self._go(here, target)
            return
        self._rest(here, targets)
        vector, mask = e.vector(index), e.mask()
        lanes: dict[int, str] = {}
        for number, target in enumerate(end.targets):
            equal = e.new(f"icmp eq {VECTOR.of('i32')} {vector}, {VECTOR.const('i32', number)}")
            chosen = e.new(f"and i32 {mask}, {e.new(f'bitcast <{WARP} x i1> {equal} to i32')}")
            lanes[target] = e.new(f"or i32 {lanes[target]}, {chosen}") if target in lanes else chosen
        for target, chosen in lanes.items():
            if target != EXIT:
                self._leave(here, target, chosen)
        self._look(here, lanes)

    # --- which block is next

    def _look(self, here: int, targets: Iterable[int]) -> None:
        """Run the first block in order at which lanes wait, after those of `here` have left for `targets`.

        The code looks at the places where lanes may wait now, one after the other. All blocks share one chain of looks
        for the case of many places: after it, LLVM assumes that lanes come from any block, and merges every register.
        """
        e, pending = self.e, self.plan.pending
        ended = EXIT in targets
        places = {*bits(pending.waiting[here]), *targets} - {EXIT}
        if len(places) > MOST_LOOKS:
            e.put(f"br label %{self._next(here)}")
            return
        ordered = sorted(places, key=lambda place: pending.turn(here, place))
        if not ended:
            *ordered, last = ordered
        for place in ordered:
            on = e.fresh("on")
            some = e.new(f"icmp ne i32 {e.new(f'load i32, ptr %m{place}')}, 0")
            e.put(f"br i1 {some}, label %enter{place}, label %{on}")
            e.start(on)
        e.put("ret void" if ended else f"br label %enter{last}")

    def _chain(self) -> list[tuple[int, int]]:
        """Return the blocks where lanes may wait, in the order to look: (block before it, block).

        The head of a loop comes again after the loop's last block.
        """
        waiting = set(self.waiting_places)
        chain: list[tuple[int, int]] = []
        for index, block in enumerate(self.blocks):
            if index in waiting:
                chain.append((index - 1, index))
            chain += [(index, head) for head, last in block.loops if last == index and head in waiting]
        return chain

    def _next(self, here: int) -> str:
        """Return the label of the first look after `here`."""
        for number, (after, _) in enumerate(self.chain):
            if after >= here:
                return f"look{number}"
        return "done"

    def _looks(self) -> None:
        """Write the shared looks. look<n> runs its block if lanes wait there, else it goes to the next look."""
        e = self.e
        for number, (_, place) in enumerate(self.chain):
            follow = f"look{number + 1}" if number + 1 < len(self.chain) else "done"
            e.start(f"look{number}")
            some = e.new(f"icmp ne i32 {e.new(f'load i32, ptr %m{place}')}, 0")
            e.put(f"br i1 {some}, label %enter{place}, label %{follow}")
        e.start("done")
        e.put("ret void")
