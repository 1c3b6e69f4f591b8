"""Claims of the reports, with verdicts from exact counts and from results of the reference systems."""
