"""Studies: variants of one task compared with several seeds, `triform compare`."""
