# SPDX-License-Identifier: Apache-2.0
"""Real daemon, real trainers, an emulated cloud: whole reclaims in real time."""
