"""Search for good settings on Optuna: a space of settings, trials that workers share, and a report."""
