"""Who may do what: users, their permissions, and the check of each request (docs/security.md)."""
