"""Starting of a server: in its own process, or as a Ray actor. Runs in the command's process."""
