"""`python -m deploy` is the command `graceway`."""

from deploy.cli import main

main()
