"""Charts, figures, HTML pages, and the reports of runs, demos and parameter counts."""
