"""Text in: readers of files and builtin sets, and tokens stored on disk. No torch here."""
