"""From PTX text to data: parsing, and the expansion of calls in place."""
