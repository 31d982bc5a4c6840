"""`python -m aotgrad`: see `aotgrad.inspect.command_line`."""

import sys

from aotgrad.inspect.command_line import main

sys.exit(main())
