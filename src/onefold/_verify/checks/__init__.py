"""The checks, one module per family. Each returns what it saw, or raises a `Violation` or `NotApplicable`."""
