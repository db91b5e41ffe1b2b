"""An answer cache before the database: answers that are replayed without a query. Imported only where it is used."""
