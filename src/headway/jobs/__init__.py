"""Jobs: apply a function to the lines of files, with workers on one or many machines that share a folder.

=================================  ===================================================================================
:mod:`~headway.jobs.plan`          the plan: the operation, its inputs, and how they are divided into chunks
:mod:`~headway.jobs.inputs`        reading inputs in chunks of whole lines
:mod:`~headway.jobs.protocol`      how workers share chunks, and how a result becomes final
:mod:`~headway.jobs.files`         the file system operations that the protocol uses
:mod:`~headway.jobs.owner`         identifies the process that works on a chunk
:mod:`~headway.jobs.results`       the file with the result of a chunk
:mod:`~headway.jobs.worker`        a worker: takes chunks, converts their lines, commits results
:mod:`~headway.jobs.isolation`     converts a chunk whose workers have died, and finds the line that caused it
:mod:`~headway.jobs.status`        the numbers of finished, running and failed chunks
:mod:`~headway.jobs.join`          joins the results into one file, or into one file per input
=================================  ===================================================================================

This package imports no models. The caller (:mod:`headway.corpus`) passes the operation.
"""
