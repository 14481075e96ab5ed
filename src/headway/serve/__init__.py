"""The HTTP service: from model folders to an API that translates for many users at once.

    config         serve.toml: models, limits, keys
    loader         a process that loads models once, and forks the workers, which share its memory
    worker         a process that computes: it answers many jobs side by side
    shared_search  the search of a worker: the requests of all its jobs share batches
    fleet          starts, watches and replaces the workers of a loader, and sends them jobs
    model_pool     the models that stay loaded, and those that are loaded on demand
    admission      who may come in, and when: a bounded queue, quotas, and shares for each key
    bulk_jobs      bulk texts, which are translated while little else is done
    usage          the characters that each key has used in this month
    service        what the APIs call: texts in, results out
    directions     which model translates a pair of languages, or which two
    languages      language codes, and the language of a text
    app            the HTTP application
    reports        what /metrics and the log say of requests
    apis           one file for each API that clients know

Needs the extra ``serve``.
"""
