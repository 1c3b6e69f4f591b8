"""Looking inside: attention maps, attributions, sanity checks, and what a model costs."""
