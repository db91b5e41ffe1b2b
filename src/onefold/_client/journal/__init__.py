"""The key journal: which key an intent is sent under, written down before the first byte leaves.

A process that dies in the middle of a call leaves a row behind. The next call of the intent, in any process, gets
the same key, so the server recognises the same call.
"""
