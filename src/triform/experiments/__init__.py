"""Experiments: several variants of a model, each trained with several seeds, evaluated and compared."""
