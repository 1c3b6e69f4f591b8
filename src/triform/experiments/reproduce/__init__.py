"""The reference systems, run from data to table: under their reported settings, and under better ones."""
