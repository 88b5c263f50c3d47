# SPDX-License-Identifier: Apache-2.0
"""The done-list of a batch: which items have their output, kept so that a machine may go at any moment."""
