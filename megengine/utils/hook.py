"""MegEngine's path of handles of hooks."""

from megengine.core.hook_handler import HookHandler as HookHandler
