"""How the admin writes what Django leaves to a language."""
