"""What is told to people: the report of a divergence as data, and as text."""
