"""The features job for `spark-submit`: the arguments are those of `tailrace features`."""

import sys

from tailrace.cli.app import run

sys.exit(run(["features", *sys.argv[1:]]))
