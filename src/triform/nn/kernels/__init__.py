"""Faster equivalents of what `triform.nn` computes. `use_fast_kernels` in `dispatch` switches a model to them.

- `dispatch`: selects the fastest attention kernel that computes the same result.
- `sdpa`: PyTorch's fused attention; what kernels know about masks; tensors cached for masks.
- `tiling`: attention in tiles, so that keys outside a window or a packed sequence are not computed.
- `packing`: batches without padding, with the sequences end to end in one row.
- `beams`: the layout of a beam search whose hypotheses share one KV cache.
- `flex`: windows on CUDA by FlexAttention.
- `varlen`: packed sequences on CUDA by flash attention.
- `chunked_loss`: the loss over a large vocabulary without all logits in memory.
- `bf16_weights`: bf16 copies of the fp32 weights for matrix products.
- `cpu_linear`: linear layers on the CPU by oneDNN, for decode steps and for training.
- `int8`, `precision`: the precision of a trained model: fp32, bf16 or int8.
- `cuda_graph`: captures work as a CUDA graph.
"""
