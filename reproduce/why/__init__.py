"""The study `why-transformers`: a Transformer and an LSTM with equal parameters and training time."""
