"""Files on disk: whole or absent, verified by digests, written by one process at a time. No torch."""
