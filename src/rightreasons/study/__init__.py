"""A study: many matched runs from a list that is data, small records of them, and their page."""
