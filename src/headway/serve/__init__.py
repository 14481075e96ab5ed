"""The HTTP service: from model folders to an API that translates for many users at once.

    config           serve.toml: models, limits, keys
    workers          the processes that compute
    model_info       what is known of a model
    clients          API keys, their rates and quotas, and the sizes of requests
    admission        the bounded queue, and the shares of each key
    bulk_jobs        bulk texts, which are translated while little else is done
    usage            the characters that each key has used in this month
    cache            recent translations
    service          what the APIs call: texts in, results out
    documents        uploaded documents
    glossaries       stored glossaries
    inspections      the requests of the view Why
    directions       which model translates a pair of languages, or which two
    languages        language codes, and the language of a text
    app              the HTTP application
    dispatch         which API a request belongs to
    errors           the errors of all files
    http_errors      the status and message of the reply to each error
    http_connection  limits on connections and headers
    reports          what /metrics and the log say of requests
    log_handler      writes the log without delaying requests
    apis             one file for each API that clients know
    page             the files of the page
    run              the service in one process on one machine
    ray              the service on several machines
    reference        writes docs/serve_toml.md

Needs the extra ``serve``.
"""
