"""The command line: arguments, verbs and what they show."""
