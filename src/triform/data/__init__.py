"""Read files and built-in datasets, store tokens, sample batches and audit data. No torch."""
