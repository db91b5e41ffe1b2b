"""Metrics made of telemetry: one table of instruments, and what writes it to Prometheus or to OpenTelemetry."""
