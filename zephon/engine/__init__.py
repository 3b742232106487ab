"""Ordered workers, lanes and delivery: the only threads and queues of the loader."""
