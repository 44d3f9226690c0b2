"""Prints of kernels appear in the pool's output by client's name, escaped, and within a client's share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kaas.worker.processes import BYTES_PER_MINUTE
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
import kaas
from kaas.config import Config, Device
PTX = r'''
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 text[32] = {27, 91, 50, 74, 102, 97, 107, 101, 13, 107, 97, 97, 115, 58, 32, 108, 111, 103, 10, 0};
.visible .entry says(.param .u64 y, .param .u32 n)
{
 .reg .pred %p;
 .reg .b32 %i, %n, %r;
 .reg .b64 %t, %y;
 ld.param.u64 %y, [y];
 ld.param.u32 %n, [n];
 st.global.u32 [%y], %n;
 mov.u32 %i, 0;
more:
 mov.u64 %t, text;
 cvta.global.u64 %t, %t;
 {
 .param .b64 a;
 .param .b64 b;
 .param .b32 r;
 st.param.b64 [a], %t;
 st.param.b64 [b], 0;
 call.uni (r), vprintf, (a, b);
 ld.param.b32 %r, [r];
 }
 add.u32 %i, %i, 1;
 setp.lt.u32 %p, %i, %n;
 @%p bra more;
 ret;
}
'''
kaas.init(ray=False, name=sys.argv[1], config=Config(devices=(Device("software", 16 << 20),)))
y = kaas.Buffer("y", 1, "uint32")
library = kaas.Library.from_ptx(PTX)
task = kaas.KTask([kaas.Kernel(library, "says", 1, 1, [kaas.Out(y), kaas.Scalar("n", "u32")])], [y])
for n in (1, 3000, 3000, 3000, 3000):
    kaas.call(task, {}, scalars={"n": n}, client="me").result()
kaas.shutdown()
"""


def test_lines_are_named_escaped_and_bounded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"printed-{os.getpid()}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr
    lines = [line for line in done.stdout.decode().splitlines() if "fake" in line]
    assert lines[0] == "[client me] \\x1b[2Jfake\\rkaas: log"
    assert all(line.startswith("[client me] ") for line in lines)
    assert len(lines) <= BYTES_PER_MINUTE // 19 + 1
    assert "more than 65536 bytes in a minute" in done.stdout.decode()
