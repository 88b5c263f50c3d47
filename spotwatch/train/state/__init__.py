# SPDX-License-Identifier: Apache-2.0
"""What is saved: the trainer's objects and random state, as JSON and one buffer."""
