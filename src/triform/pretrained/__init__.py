"""Published models in and out: families of them are settings of the one core, and tables of names."""

from triform.pretrained.exported import export
from triform.pretrained.exporting import to_hf
from triform.pretrained.importing import Imported, open_folder

__all__ = ["Imported", "export", "open_folder", "to_hf"]
