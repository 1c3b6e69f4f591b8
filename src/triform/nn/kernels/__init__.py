"""Faster equivalents of what `triform.nn` computes: fused kernels, reduced precision and CUDA graphs."""
