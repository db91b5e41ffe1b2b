"""The kernel: effects as data, the runners that perform them, and the ports they are performed on."""
