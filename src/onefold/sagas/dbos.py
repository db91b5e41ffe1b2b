"""The engine DBOS: embedded, in a SQLite file, or in PostgreSQL for several processes. `pip install 'onefold[dbos]'`"""

from onefold._engines.dbos.dbos_engine import Dbos

__all__ = ["Dbos"]
