"""The HTTP API, `/api/v1/`: parse, one read or one operation, render. `api.md` of the design is its contract."""
