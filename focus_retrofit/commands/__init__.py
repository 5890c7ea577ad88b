"""One module per command of `focus-retrofit`."""
