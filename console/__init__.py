"""The web console: settings, pages, admin, HTTP API and the processes that serve them."""
