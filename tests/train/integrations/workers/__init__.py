# SPDX-License-Identifier: Apache-2.0
"""Scripts that tests run as processes of their own."""
