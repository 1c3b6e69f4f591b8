"""Charts, figures and HTML pages; reports of runs, demos and parameter counts."""
