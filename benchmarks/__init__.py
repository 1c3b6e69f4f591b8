"""Triform beside its peers: the same work, the same machine, one run. Each file is a program of its own."""
