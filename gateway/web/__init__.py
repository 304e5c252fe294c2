"""The HTTP API and the console: `table` lists the requests, `site` answers them."""
