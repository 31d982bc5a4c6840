"""Programs as other people write them, with their frameworks, in eager and compiled: `bash scripts/workflows.sh`.

rows.py        the list of programs, and the tolerance of each
programs/      the programs: each takes a `Run`, compiles with it, and reports the results of every step to it
run.py         the observations of one run of a program
compare.py     the difference between two runs
cell.py        one program with one backend beside eager, in a separate process
sweep.py       all cells, each once: results are kept in a file of JSON lines
report.py      the results as a document
"""
