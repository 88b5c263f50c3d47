# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run: what each says of itself, which one counts, which can be trusted, which go."""
