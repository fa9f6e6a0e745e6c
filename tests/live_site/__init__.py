"""The product, with one page more that shows a panel and nothing else, and a heartbeat that tests can wait for."""
