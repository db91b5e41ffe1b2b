"""Worker loops beside requests: relay and consumers, their wake-ups, supervision and shutdown."""
