"""The console: an ASGI application over onefold's own tables, for people with a browser.

`app.mount("/console", console(once, authorize=...))`, or alone: `onefold console -d URL`.
"""

from onefold._console.app import Console, console
from onefold._console.roles import Operator, Role

__all__ = ["Console", "Operator", "Role", "console"]
