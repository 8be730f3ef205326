"""The commands, a module for each; it is imported when the command is called."""
