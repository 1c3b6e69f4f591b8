"""A study: variants of one thing over the same seeds, and whether their differences are real."""
