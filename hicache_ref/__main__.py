"""`python -m hicache_ref` is the command line."""

import sys

from hicache_ref.cli import main

if __name__ == "__main__":
    sys.exit(main())
