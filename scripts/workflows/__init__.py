"""Programs as other people write them, with their frameworks, in eager and compiled: `bash scripts/workflows.sh`.

rows.py        the list of programs, and how close each must come to eager
programs/      the programs: each takes a `Run`, compiles with it, and tells it what every step has computed
run.py         what one run of a program showed
compare.py     how far two runs are apart
cell.py        one program with one backend beside eager, in a process of its own
sweep.py       all cells, each once: results are kept in a file of JSON lines
report.py      the results as a document
"""
