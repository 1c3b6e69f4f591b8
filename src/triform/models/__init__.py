"""The three forms of the one Transformer."""
