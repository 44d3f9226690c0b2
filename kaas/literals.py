"""Literals by the names of their kinds: `kaas.i32(5)`, `kaas.f32(0.5)`, …"""

from __future__ import annotations

from functools import partial

from kaas.arguments import literal

i8 = partial(literal, "i8")
i16 = partial(literal, "i16")
i32 = partial(literal, "i32")
i64 = partial(literal, "i64")
u8 = partial(literal, "u8")
u16 = partial(literal, "u16")
u32 = partial(literal, "u32")
u64 = partial(literal, "u64")
f16 = partial(literal, "f16")
bf16 = partial(literal, "bf16")
f32 = partial(literal, "f32")
f64 = partial(literal, "f64")
c64 = partial(literal, "c64")
c128 = partial(literal, "c128")
boolean = partial(literal, "boolean")
