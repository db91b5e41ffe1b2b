"""What a call costs that succeeds at once, retried by us and by others."""
