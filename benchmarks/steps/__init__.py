"""What recorded steps cost, beside the bare handler of two commits and beside DBOS."""
