"""A client of the API for the shell: tables, lists that are watched, what somebody should look at."""
