"""Import and export published models.

A model family, such as GPT-2 or BERT, is described by a set of fixed settings for Triform's models and a table that
maps its tensor names to Triform's.
"""

from triform.pretrained.model_export import to_hf
from triform.pretrained.model_import import ImportedModel, load_pretrained
from triform.pretrained.run_export import export

__all__ = ["ImportedModel", "export", "load_pretrained", "to_hf"]
