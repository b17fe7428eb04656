"""`python -m thespis` is `thespis`."""

from __future__ import annotations

import sys

from thespis.cli.main import main

sys.exit(main())
