"""The executor: one device, its memory and its plans. Runs in an executor's process; `run_local` in a program's.

`device/host_arrays.py` and `device/software.py` also run in programs, clients and pools. Nothing here needs Ray.
"""
