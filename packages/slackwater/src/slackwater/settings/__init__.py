"""All settings of all commands: one model, and where its values come from."""
