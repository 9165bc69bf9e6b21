"""``python -m lcpd`` is the ``lcpd`` command."""

from lcpd.cli.main import main

if __name__ == "__main__":
    main()
