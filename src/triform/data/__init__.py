"""Read files and built-in data sets, store tokens, sample batches and audit data. No torch."""
