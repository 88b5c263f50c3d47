# SPDX-License-Identifier: Apache-2.0
"""Who may go on with a run: the lease, how it is taken, held, renewed and lost."""
