"""What is known of a kernel before code is made: control flow, lanes that wait, how values differ between lanes."""
