"""``python -m headway`` runs the command ``headway``."""

from headway.cli import main

if __name__ == "__main__":
    main()
