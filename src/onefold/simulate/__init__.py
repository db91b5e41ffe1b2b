"""Storms in virtual time: what retries do to a server in trouble, before they do it to yours."""
