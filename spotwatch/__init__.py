# SPDX-License-Identifier: Apache-2.0
"""Turn a cloud's "we are taking this machine back" into a checkpoint that is proven to be safe.

Nothing is imported here, so that a trainer pays nothing for `import spotwatch`.
"""

__version__ = "0.1.0"
