"""What each type of PostgreSQL becomes behind a real connector, compared value by value with the database."""
