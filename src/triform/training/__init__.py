"""The trainer knows when: steps, validation, checkpoints, the end. What is learned is the task's affair."""
