"""Stores of records and answers: SQLite by default, Redis for several hosts; one interface."""
