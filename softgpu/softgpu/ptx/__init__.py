"""PTX text to data: parsing, and calls expanded in place."""
