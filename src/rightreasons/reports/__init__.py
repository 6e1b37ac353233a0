"""Reports: run folders as plain data; tables, figures and the page are pure functions of it."""
