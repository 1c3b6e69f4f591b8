"""What a model costs before it is built: parameters, memory and floating-point operations. No torch."""
