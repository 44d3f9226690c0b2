"""How a server starts: in a process of its own, or as a Ray actor. Runs in the server's process."""
