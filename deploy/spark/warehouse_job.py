"""The warehouse job for `spark-submit`: the arguments are those of `tailrace warehouse run`."""

import sys

from tailrace.cli.app import run

sys.exit(run(["warehouse", "run", *sys.argv[1:]]))
