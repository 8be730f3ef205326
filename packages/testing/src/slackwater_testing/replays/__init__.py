"""A real connector is killed inside long transactions until it has undercounted one; all is judged."""
