"""``python -m zephon.launch``, and the console script ``zephon``."""

import sys

from zephon.launch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
