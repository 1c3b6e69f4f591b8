"""Read and write published models: each family is a set of settings for Triform's models and a table of names."""

from triform.pretrained.model_export import to_hf
from triform.pretrained.model_import import ImportedModel, load_pretrained
from triform.pretrained.run_export import export

__all__ = ["ImportedModel", "export", "load_pretrained", "to_hf"]
