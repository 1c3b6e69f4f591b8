"""Training: the loop, optimizers and schedules, checkpoints, fine-tuning, and ensembles of seeds."""
