"""A Django app whose agents think with a model: the rehearsal server plays the script in their instructions."""
