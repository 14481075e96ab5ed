"""The HTTP service: serves model folders to many users at once, through several APIs.

    config           serve.toml: models, limits, keys
    workers          the worker processes, which run the models
    model_info       descriptions of the models
    clients          API keys, their rates and quotas, and the sizes of requests
    admission        the bounded queue, and each key's share of it
    bulk_jobs        jobs for bulk texts, which run while the queue is short
    usage            the number of characters that each key has used this month
    cache            a cache of translations
    service          the methods that the APIs call, independent of HTTP
    documents        uploaded documents
    glossaries       stored glossaries
    inspections      the requests of the page's Why view
    directions       chooses the model, or the two models, for a pair of languages
    languages        language codes and language detection
    app              the HTTP application
    dispatch         determines the API of each request
    errors           the exceptions of the service
    http_errors      the HTTP status and message for each exception
    http_connection  limits on connections and headers
    reports          metrics and the request log
    log_handler      writes the log without delaying requests
    apis             one file for each API
    page             the files of the web page
    run              the service in one process on one machine
    ray              the service on several machines
    reference        generates docs/serve_toml.md

Requires the extra ``serve``.
"""
