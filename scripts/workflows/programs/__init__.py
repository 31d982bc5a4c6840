"""The programs, one file for each framework. A program is a function of a `Run`."""
