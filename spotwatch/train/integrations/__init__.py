# SPDX-License-Identifier: Apache-2.0
"""What `Checkpointer` gives, for trainers that bring their own loop: a module a library, each optional."""
