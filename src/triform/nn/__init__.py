"""The parts of a Transformer; each knows its settings and nothing of text, tasks or training.

Shapes in this package: B batch, T query positions, S key positions, D d_model, H heads, G heads of keys and
values, Dh head_dim, V vocab_size. A line that changes a shape ends with the new one. `True` in a mask means
"may be read".
"""
