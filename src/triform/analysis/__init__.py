"""Estimate the parameters, memory and floating-point operations of a model before it is built. No torch."""
