"""Holds aotgrad against eager on torch's own databases, with the machinery of `aotgrad.conformance`.

variants      ways to call and to compile a subject
compilers     aotgrad, and the peer
errors        inputs that eager refuses, and the outcome of compiled operators on them
expectations  compares verdicts with the table of expected failures
report        the verdicts as tables
"""
