"""Why Transformers: an LSTM and a Transformer with as many parameters and as much training time."""
