"""How a server makes a function out of the client's code. Runs in the server's process."""
