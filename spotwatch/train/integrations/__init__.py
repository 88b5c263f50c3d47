# SPDX-License-Identifier: Apache-2.0
"""What `Checkpointer` gives, for trainers with a loop of their own: one module a library, none imported unasked."""
