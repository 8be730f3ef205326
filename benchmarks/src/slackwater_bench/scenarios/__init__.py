"""One module per scenario: data and a function that measures once."""
