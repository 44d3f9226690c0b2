"""The system calls that a sandboxed executor does not need, refused by Linux (seccomp, as a classic BPF program).

Landlock covers files, connections and signals. It does not keep a process from forking itself away from its group, from
running a program that lies in memory only, or from changing the limits, the processors or the priority of another
process of the same user.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from struct import pack

REFUSED = {
    "x86_64": {
        "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "setsid": 112, "setpgid": 109, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312, "unshare": 272,
        "setns": 308, "mount": 165, "open_by_handle_at": 304, "io_uring_setup": 425, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250, "shmget": 29,
        "semget": 64, "msgget": 68,
    },
    "aarch64": {
        "execve": 221, "execveat": 281, "setsid": 157, "setpgid": 154, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438, "kcmp": 272, "unshare": 97,
        "setns": 268, "mount": 40, "open_by_handle_at": 265, "io_uring_setup": 425, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219, "shmget": 194,
        "semget": 190, "msgget": 186,
    },
}  # fmt: skip
"""Always refused, by machine: numbers of the kernel's tables."""
STARTS_PROGRAMS = frozenset({"fork", "vfork", "execve", "execveat", "setsid", "setpgid"})
"""Those of them that a process needs that starts compilers."""
CHECKED = {
    "x86_64": {"clone": 56, "clone3": 435, "socket": 41, "prlimit64": 302,
               "sched_setaffinity": 203, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314,
               "setpriority": 141, "ioprio_set": 251},
    "aarch64": {"clone": 220, "clone3": 435, "socket": 198, "prlimit64": 261,
                "sched_setaffinity": 122, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274,
                "setpriority": 140, "ioprio_set": 30},
}  # fmt: skip
"""Refused by their arguments: the last ones if they name another process or thread."""
OF_ANOTHER = {"prlimit64": 0, "sched_setaffinity": 0, "sched_setparam": 0, "sched_setscheduler": 0, "sched_setattr": 0,
              "setpriority": 1, "ioprio_set": 1}  # fmt: skip
"""The argument that names one; 0 stands for the caller."""
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
"""Numbers from this one on are of x86-64's other table, x32."""
CLONE_THREAD = 0x00010000
AF_UNIX, NO_FAMILY = 1, 0xFFFF

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def restrict(*, programs: bool, sockets: bool = True) -> bool:
    """Restrict this thread, and threads that it starts, for good; return False on another machine than x86-64 or Arm.

    programs: the process may start other programs. sockets: it may make local ones.

    Raises:
        OSError: Linux refuses it.
    """
    machine = platform.machine()
    if machine not in REFUSED:
        return False
    code = b"".join(_instructions(machine, programs=programs, sockets=sockets))
    program = _FilterProgram(len(code) // 8, code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program)):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
    return True


def _instructions(machine: str, *, programs: bool, sockets: bool) -> list[bytes]:
    """Return a short program for each system call: for another number, execution goes on behind it."""
    checked = CHECKED[machine]
    code = [
        _instruction(_LOAD, _ARCH),
        _instruction(_EQUAL, AUDIT[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, X32, 0, 1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for name, number in REFUSED[machine].items():
        if not (programs and name in STARTS_PROGRAMS):
            code += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _ERROR | errno.EPERM)]
    if not programs:
        # clone3's flags lie in memory, where no filter reads them: glibc takes the older call instead
        code += [_instruction(_EQUAL, checked["clone3"], 0, 1), _instruction(_RETURN, _ERROR | errno.ENOSYS)]
        code += _unless(checked["clone"], 0, _ANY_BIT, CLONE_THREAD)
    code += _unless(checked["socket"], 0, _EQUAL, AF_UNIX if sockets else NO_FAMILY)
    for name, argument in OF_ANOTHER.items():
        code += _unless(checked[name], argument, _EQUAL, 0)
    return [*code, _instruction(_RETURN, _ALLOW)]


def _unless(number: int, argument: int, test: int, value: int) -> list[bytes]:
    """Refuse a system call unless an argument, its lower 32 bits, passes a test."""
    return [
        _instruction(_EQUAL, number, 0, 4),
        _instruction(_LOAD, _ARGUMENTS + 8 * argument),
        _instruction(test, value, 0, 1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, _ERROR | errno.EPERM),
    ]


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter."""
    return pack("=HBBI", operation, if_true, if_false, value)
