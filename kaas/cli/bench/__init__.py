"""`kaas bench`, and `kaas bench peers`."""
