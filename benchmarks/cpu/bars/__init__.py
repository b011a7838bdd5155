"""One bar a file: a function from the setting of the run to its result."""
