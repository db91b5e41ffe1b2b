"""A report for people, programs, CI, browsers and node_exporter. Each is made of a `ProbeReport` alone."""
