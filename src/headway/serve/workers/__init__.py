"""The processes that compute, and how the service starts them, watches them and sends them jobs.

messages         what processes send each other
loader           a process that loads models once, and forks the workers, which share its memory
worker           a process that computes: it runs many jobs side by side
shared_search    the search of a worker: the requests of all its jobs share batches
fleet            the interface of workers
process_fleet    starts, watches and replaces the workers of a loader, and sends them jobs
worker_process   one of its processes
model_pool       the models that stay loaded, and those that are loaded on demand
"""
