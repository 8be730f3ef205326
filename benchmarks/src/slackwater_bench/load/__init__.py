"""Load by clients of the database: arrival rates, and the run that puts Locust on a real stack."""
