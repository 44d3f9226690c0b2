"""The server's configuration: its file, its checks, the memory it promises. Runs in the server's process."""
