"""Clients that retry well: keys that outlive the process, budgets, breakers and deadlines, for every HTTP client."""
