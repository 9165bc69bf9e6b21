"""Measurements of lcpd from outside, against llama-server built from the same source."""
