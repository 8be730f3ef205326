"""What runs are made of: servers and processes, what is seen of them."""
