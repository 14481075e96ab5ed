"""Jobs: apply any function to the lines of files, with workers on one or many machines that share a folder.

=================================  ===================================================================================
:mod:`~headway.jobs.plan`          the plan: what is done to which lines, in chunks
:mod:`~headway.jobs.inputs`        reading inputs in chunks of whole lines
:mod:`~headway.jobs.protocol`      who works on which chunk, and how a result becomes final
:mod:`~headway.jobs.files`         the operations of a file system that the protocol uses
:mod:`~headway.jobs.owner`         identifies the process that works on a chunk
:mod:`~headway.jobs.results`       the file with the result of a chunk
:mod:`~headway.jobs.worker`        a worker: takes chunks, converts their lines, commits results
:mod:`~headway.jobs.careful`       converts the lines of a chunk whose workers have died, and finds the line at fault
:mod:`~headway.jobs.status`        what is done, running and failed
:mod:`~headway.jobs.join`          the results as one file for each input
=================================  ===================================================================================

Nothing here imports a model. The operation comes from the caller (:mod:`headway.corpus`).
"""
