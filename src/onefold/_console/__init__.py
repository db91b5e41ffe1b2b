"""The console: pages over onefold's own tables, made by the server, readable without script.

Invariants: no page without an operator that `access` has identified, no change without role *act*, a reason and a line
in the audit, and no change by GET.
"""
