"""Speed of the kernels against full attention: `python -m focus_kernels.bench --help`."""
