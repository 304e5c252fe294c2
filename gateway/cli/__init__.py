"""The command `tidegate`: its subcommands, what they ask of a running gateway, and how they show it."""
