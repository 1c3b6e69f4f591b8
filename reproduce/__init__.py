"""Reference systems: published results reproduced and improved, `python -m reproduce`."""
