"""Processes that are forked from one which has loaded what they need: they start in a tenth of the time."""

from __future__ import annotations

import multiprocessing

# What is loaded there stays out of the process that runs the tests.
nursery = multiprocessing.get_context("forkserver")
nursery.set_forkserver_preload(["tests.support.preloaded"])
