"""What a server keeps on disk, so that it survives a restart: blobs, objects, functions, replies.

Runs in the server's process.
"""
