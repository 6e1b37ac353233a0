"""Other libraries: each module here needs its library, and nothing else imports it."""
