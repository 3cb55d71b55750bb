"""Values and progress that running tasks push to the driver."""
