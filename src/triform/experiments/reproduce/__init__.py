"""Reference systems: published results reproduced and improved, `triform reproduce`."""
