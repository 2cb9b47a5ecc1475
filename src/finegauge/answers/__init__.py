"""One typed answer per question, worked out once, without text."""
