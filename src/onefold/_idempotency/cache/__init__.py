"""An answer cache before the database: what may be repeated without asking it. Imported by those who have one."""
