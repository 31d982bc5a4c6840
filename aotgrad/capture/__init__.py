"""A function and the specs of its inputs -> `Capture`: the function runs once on fake tensors, under functionalization.

trace                  `capture_function`, the stage
fake                   the input specs: real inputs -> fake tensors
functional             functional wrappers around the fakes: the traced arguments
trace_state            the global state of a trace
garbage                pauses garbage collection

How nodes are recorded:

fast_recorder          nodes of ordinary ops, without proxies
recorder               the other nodes, by the FX tracer
function_mode          intercepts calls of torch functions
generator              follows the random generator
literals               tensors of symbolic numbers

Calls that are recorded differently:

casting_calls          kernels that call ops of autocast
eager_calls            functions that are not traced
inner_backwards        backwards that the function runs itself
kept_calls             functions that a backend keeps whole
kernels                refuses some wrapped Triton kernels
regions                checkpointed regions
outside_memory         memory that these functions and the traced one both use
undo                   effects of a function that runs once more
values                 numbers that depend on data

What the graph does not show:

gradient_aliases       values that the function both computes and gets
hooks                  hooks that the function registers
indexing               views that eager does not make
repeats                computations that repeat earlier ones
views_before_mutation  views that were made before the last write to their memory
write_times            whether inputs are written before the last tensor that autograd saves
"""
