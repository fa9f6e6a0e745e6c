"""Words, icons and CSS classes for everything that has a state. Templates print; what is decided is decided here."""
