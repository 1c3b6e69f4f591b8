"""Explain predictions: attention maps, attributions, and sanity checks of a model."""
