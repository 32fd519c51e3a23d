# SPDX-License-Identifier: Apache-2.0
"""deep_ep.utils: from where engines import the events."""
from switchyard.compat._deep_ep_values import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
