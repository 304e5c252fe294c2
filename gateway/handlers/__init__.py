"""What each request means, grouped by what a client is doing."""
