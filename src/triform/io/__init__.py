"""Read and write files: atomic writes, digests, folder locks and the layout of a run folder. No torch."""
