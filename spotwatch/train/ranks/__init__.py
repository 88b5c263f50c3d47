# SPDX-License-Identifier: Apache-2.0
"""Many processes, one run: what they agree on, and how their shares become one checkpoint."""
