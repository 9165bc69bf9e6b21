"""A real Prometheus that scrapes a real daemon; ``python -m tests.prometheus`` draws the dashboards from it."""
