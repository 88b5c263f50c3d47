# SPDX-License-Identifier: Apache-2.0
"""Tests of what `spotwatch check` asks and judges."""
