"""The statements of natural writes: one set, and what each dialect says differently."""
