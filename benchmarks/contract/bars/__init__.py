"""One row of the table each."""
