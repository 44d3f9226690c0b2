"""The executor: one device, its memory and its plans. Runs in an executor's process; `run_local` in a program's.

Nothing here needs Ray.
"""
