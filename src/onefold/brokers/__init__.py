"""Brokers: one adapter each, on its well-kept client. Sends are confirmed; unsafe settings are refused at start."""
