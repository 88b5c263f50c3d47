# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie: directories, S3 and what speaks like it, Google Cloud Storage, Azure."""
