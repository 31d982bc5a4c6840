"""Every subject that does not pass, and why; sorted by name. A line that starts to pass fails the suite.

`variants` names those that it fails in, where it does not in all. The reasons: a Python branch, or one in C++, needs the
value of a tensor, which a trace does not have; a tensor lies in memory otherwise than in eager; torch cannot trace the op.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.verdict import OtherStrides, Raised, RanEagerly, Refused

TORCH = "2.13"
"""The release whose databases the table is for."""


@dataclass(frozen=True)
class Failure:
    """One line. `kind` is the class of its verdict."""

    subject: str
    kind: type
    reason: str
    variants: tuple[str, ...] = ()


DYNAMIC = ("dynamic", "dynamic core", "dynamic inductor's")
COMPLEX = ("complex128",)
COMPLEX_SVD = "its backward branches on whether the gradients of complex singular vectors are well-defined"
BRANCHES_ON_VALUES = "refuses some values of its arguments, by a branch that depends on them"
GRADIENT_STRIDES = "a gradient is dense in another order of its dimensions"
ROWS = "gets a sparse tensor in rows that requires grad, at whose trace torch aborts the process"

EXPECTED_FAILURES = (
    Failure("_native_batch_norm_legit", Raised, "torch's shape function gives `out` other sizes than its kernel", ("out=",)),
    Failure("addbmm", RanEagerly, "torch's shape function refuses to broadcast what eager lets pass", ("in-place",)),
    Failure("allclose", Refused, "returns a Python bool that depends on the values"),
    Failure("corrcoef", Refused, BRANCHES_ON_VALUES),
    Failure("cov", Refused, BRANCHES_ON_VALUES),
    Failure("equal", Refused, "returns a Python bool that depends on the values"),
    Failure("invoke_quant_simple", Raised, "Dynamo's graph of the region has no example values", ("higher-order",)),
    Failure("istft", OtherStrides, GRADIENT_STRIDES),
    Failure("item", RanEagerly, "torch traces no complex number that is read from a tensor", COMPLEX),
    Failure("linalg_lstsq", Refused, "the number of its residuals depends on the rank"),
    Failure("linalg_lstsq_grad_oriented", Refused, "the number of its residuals depends on the rank"),
    Failure("linalg_svd", Refused, COMPLEX_SVD, COMPLEX),
    Failure("lu", Refused, "its out= form calls resize_as_", ("out=",)),
    Failure("narrow", Refused, "a view of an input at a place that the value of a tensor says"),
    Failure("nn.CTCLoss (evaluation)", Refused, "reads the lengths of the sequences as numbers"),
    Failure("nn.CTCLoss (training)", Refused, "reads the lengths of the sequences as numbers"),
    Failure("nn.GaussianNLLLoss (evaluation)", Refused, BRANCHES_ON_VALUES),
    Failure("nn.GaussianNLLLoss (training)", Refused, BRANCHES_ON_VALUES),
    Failure("nn.Transformer (evaluation)", Refused, "looks at the values of its mask to find out whether it is causal"),
    Failure("nn.Transformer (training)", Refused, "looks at the values of its mask to find out whether it is causal"),
    Failure("nn.TransformerEncoder (training)", Refused, "looks at the values of its mask to find out whether it is causal"),
    Failure("nn_functional_ctc_loss", Refused, "reads the lengths of the sequences as numbers"),
    Failure("nn_functional_gaussian_nll_loss", Refused, BRANCHES_ON_VALUES),
    Failure("nn_functional_one_hot", Refused, BRANCHES_ON_VALUES),
    Failure("nonzero", RanEagerly, "its out= form writes as many elements as the values say", ("out=",)),
    Failure("normal_in_place", Refused, "fills a tensor with gaps, which draws in another order", ("non-contiguous",)),
    Failure("ormqr", OtherStrides, GRADIENT_STRIDES, ("complex128", "core", "dynamic", "non-contiguous", "static")),
    Failure("pca_lowrank", Refused, COMPLEX_SVD, COMPLEX),
    Failure("put", Refused, "core ATen's decomposition of its backward reads a size", ("core", "dynamic core")),
    Failure("resize_", RanEagerly, "torch does not resize a traced tensor of symbolic sizes", DYNAMIC),
    Failure("resize_as_", Refused, "cannot be recorded by torch's functionalization"),
    Failure("sparse_mm_reduce", Refused, ROWS),
    Failure("sparse_sampled_addmm", Refused, ROWS),
    Failure("svd", Refused, COMPLEX_SVD, COMPLEX),
    Failure("svd_lowrank", Refused, COMPLEX_SVD, COMPLEX),
    Failure("tensor_split", Refused, "views of an input at places that the values of a tensor say"),
    Failure("to_sparse", Refused, "a sparse result that requires grad is not recorded by torch's functionalization"),
)
