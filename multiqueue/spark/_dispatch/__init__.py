"""The dispatcher: lanes, jobs, their futures, and checks of the machine."""
