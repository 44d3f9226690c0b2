"""The server's configuration: its file, its checks, the memory that it allows. Runs in the server's process."""
