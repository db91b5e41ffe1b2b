"""Drivers: the kernel's database port on sqlite3, asyncpg, psycopg and SQLAlchemy, and nothing about any feature."""
