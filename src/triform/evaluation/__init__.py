"""Metrics, statistics and baselines."""
