"""``python -m zephon.agent``; the code is in ``entry``, so that a fork server can have imported it."""

import sys

from zephon.agent.entry import main

sys.exit(main())
