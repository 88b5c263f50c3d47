# SPDX-License-Identifier: Apache-2.0
"""The test suite; mirrors the package."""
