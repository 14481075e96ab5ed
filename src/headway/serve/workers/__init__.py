"""The worker processes that run the models, and the code that starts and supervises them and sends them jobs.

messages         the messages between processes
loader           a process that loads models once, and forks the workers, which share its memory
worker           a worker process, which runs many jobs concurrently
held_jobs        a worker's jobs that wait for a glossary
waiting_jobs     a worker's queue of jobs
shared_search    the search of a worker, in which the requests of all jobs share batches
fleet            the interface to a group of workers
process_fleet    starts, supervises and replaces the workers of a loader, and sends them jobs
worker_process   the supervisor's view of a single process
model_pool       manages the permanently loaded models and the models that are loaded on demand
"""
