# SPDX-License-Identifier: Apache-2.0
"""The trainer's side: save, tell, resume. Imports nothing of the daemon."""
