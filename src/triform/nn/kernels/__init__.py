"""Faster equivalents of the plain layers in `triform.nn`: fused kernels, dispatch, reduced precision and CUDA graphs."""
