"""Generating text with a trained model: greedy decoding, sampling and beam search, with continuous batching.

Read the modules in this order:

- `kv_cache`: the keys and values that are kept between decode steps.
- `adapters`: prefill and decode step of a Transformer over its KV cache, for one batch of rows.
- `backend`: a batch of requests that are decoded together, greedily or sampled; the eager back end.
- `scheduler`: the queue, admission and eviction. `generate` is the function that tasks call.
- `sampling`, `beam`: how tokens are drawn, and beam search.
- `recurrent`: what `adapters` is for Transformers, for recurrent models.
- `graph`, `slots`: the back end that replays CUDA graphs.
"""
