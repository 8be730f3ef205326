"""Dashboards for Grafana and alert rules for Prometheus, made in code and committed as files."""
