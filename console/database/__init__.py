"""The embedded PostgreSQL as a Django database backend."""
