"""From scores to tokens: greedy, sampling and beam search over one stepper protocol."""
