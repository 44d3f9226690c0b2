"""Bytes between processes: messages, their codecs, and connections. Used by every process."""
