"""What is wrong with a source, why, and which command helps: facts, the causes they show, their text."""
