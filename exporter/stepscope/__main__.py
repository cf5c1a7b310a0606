"""`python -m stepscope`: the same as the `stepscope` command."""

import sys

from stepscope.commands.cli import main

sys.exit(main())
