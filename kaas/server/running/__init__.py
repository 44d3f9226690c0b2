"""Starting of a server: in a process of its own, or in the pool's process on Ray, where the command holds it open."""
