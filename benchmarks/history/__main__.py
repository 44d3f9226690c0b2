"""Every request has one answer, one effect and one charge while processes, network, disk and clock fail at random.

    python -m benchmarks.history [--minutes M] [--seed S] [--isolation fence|process] [--folder F] [--json]

Programs of four clients call functions of a server, and put, read and change objects there. Meanwhile a nemesis kills
and stops the server, executors, processes of steps and programs, cuts links of clients in one direction or both, fills
the disk of the server's state, and sets the wall clock by an hour. Then it rests, and begins again. All operations of
each thread and all faults follow from the seed: a run with the same seed and length repeats them.

Each begin of an operation and each answer is an event of the history, which a checker reads at the end:

- *one answer*: each attempt has one, and each repeat under an idempotency key the same;
- *results* equal the model's;
- *objects* are linearizable: there is one order of the operations on each object that explains all answers, in which
  each happens between its begin and its answer, and each at most once;
- *charges*: at each look, a client's usage counts each request with a result, once, and no others without a cause;
- *errors*: no request fails but by a fault;
- *deadlines*: a call with a deadline has an answer soon after it, whatever happens to the server;
- *liveness*: each request has an answer within 25 s of rest;
- *processes*: programs and servers end by the nemesis only, servers start again, and leave a whole state.

The run has namespaces of its own for networks, mounts and processes (unshare(1)); all that it starts ends with it.
"""

from __future__ import annotations

import os
import sys

from benchmarks.history.run import arguments

NAMESPACES = ("--user", "--map-root-user", "--net", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child")


def main() -> None:
    arguments()  # a mistake is told here
    run = [sys.executable, "-m", "benchmarks.history.run", *sys.argv[1:]]
    os.execvp("unshare", ["unshare", *NAMESPACES, *run])


if __name__ == "__main__":
    main()
