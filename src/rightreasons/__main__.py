"""``python -m rightreasons`` is ``rrr``."""

from rightreasons.cli import main

main()
