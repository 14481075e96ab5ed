"""The commands. Each file is one command: ``headway.cli`` finds and registers it.

The file NAME.py contains the function NAME, whose parameters are the arguments and options of the command and whose
docstring is its help. (An underscore is appended to Python keywords: ``import_``. Other underscores are hyphens in the
command: ``learn_bpe``.) A package is a group of commands: ``corpus/join.py`` is ``headway corpus join``. Two constants
describe a command:

- ``GROUP``: the :class:`~headway.cli.command_groups.CommandGroup` under which the help lists the
  command. A group of commands has a single ``GROUP`` for all of its commands.
- ``COMMAND_CLASS``, optional: a class of :mod:`headway.cli.decoding` that adds generated options.
"""
