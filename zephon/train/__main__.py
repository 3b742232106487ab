"""``python -m zephon.train --run URL --attempt N``: one worker, as torch elastic starts it or by hand."""

from __future__ import annotations

import sys

from zephon.train.worker import arguments_of, main

if __name__ == "__main__":
    sys.exit(main(*arguments_of("zephon.train", __doc__)))
