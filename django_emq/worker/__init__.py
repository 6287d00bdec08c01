"""The worker: a supervisor, its children, and in each child a courier and its runners.

supervisor     starts, watches, replaces children; extends their leases; sweeps
  child        (with --processes 0: all of it in one process)
    runners    run claimed jobs: the main thread, or threads, or an event loop
    courier    one thread, the only one that talks to Redis
"""
