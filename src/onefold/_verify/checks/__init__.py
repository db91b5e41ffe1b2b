"""The checks, one module per family. Each returns a sentence about the result, or raises a `Violation` or
`NotApplicable`."""
