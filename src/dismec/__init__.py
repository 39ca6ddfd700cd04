"""Exact one-vs-rest linear classifiers for thousands to millions of labels."""
