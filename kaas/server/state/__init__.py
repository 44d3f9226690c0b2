"""The state that a server keeps on disk for restarts: blobs, objects, functions, replies.

Runs in the server's process.
"""
