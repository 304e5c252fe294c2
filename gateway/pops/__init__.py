"""What pops share (POP consumers, docs/clients.md): their queues, their order, and those that wait."""
