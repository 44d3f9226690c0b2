"""The pool: policies that decide, a core that carries decisions out, and the adapter that puts it on Ray."""
