# SPDX-License-Identifier: Apache-2.0
"""Tests against real parts: systemd, link-local addresses, servers. Run by `make test-real`, as root."""
