"""Compiled models: several variants of one function behind one call, and their files. Runs in the caller's process."""
