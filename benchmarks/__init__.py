"""What onefold costs, measured beside the same application without it, in one run, on this machine."""
