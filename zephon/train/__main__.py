"""``python -m zephon.train --run URL --attempt N``: one worker, as torch elastic starts it or by hand."""

from __future__ import annotations

import argparse
import sys

from zephon.train.worker import main


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m zephon.train", description=__doc__)
    parser.add_argument("--run", required=True, metavar="URL", help="the run directory")
    parser.add_argument("--attempt", required=True, type=int, metavar="N", help="whose attempts/NNNN/spec.json to train")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _arguments()
    sys.exit(main(arguments.run, arguments.attempt))
