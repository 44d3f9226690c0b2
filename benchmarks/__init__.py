"""Benchmarks: `python -m benchmarks.<name>` prints a table, with `--json` one line of JSON last."""
