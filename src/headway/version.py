"""The version of Headway: the build, the command line, signatures of scores and the service read it here."""

__version__ = "0.1.0"
