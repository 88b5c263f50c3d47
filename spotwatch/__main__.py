# SPDX-License-Identifier: Apache-2.0
"""`python -m spotwatch` is the command line."""

from spotwatch.entry import main

main()
