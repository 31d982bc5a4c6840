"""The statements that programs are drawn from: templates of Python, one a line. `{0}` is the tensor that they are about.

What does not apply to a tensor (its rank, its dtype) raises in eager; the strategies then mostly draw again.
"""

from __future__ import annotations

VIEWS = (
    "{0}[0]",
    "{0}[1:]",
    "{0}[-1]",
    "{0}[:, 0]",
    "{0}[:, 1:]",
    "{0}[::2]",
    "{0}[None]",
    "{0}[...]",
    "{0}.t()",
    "{0}.transpose(0, -1)",
    "{0}.mT",
    "{0}.movedim(0, -1)",
    "{0}.unsqueeze(0)",
    "{0}.unsqueeze(-1)",
    "{0}.squeeze()",
    "{0}.squeeze(0)",
    "{0}.view(-1)",
    "{0}.view({0}.shape)",
    "{0}.view_as({0})",
    "{0}.view(2, -1)",
    "{0}.reshape(-1)",
    "{0}.reshape({0}.shape)",
    "{0}.flatten()",
    "{0}.contiguous()",
    "{0}.expand(2, *{0}.shape)",
    "{0}.expand_as({0})",
    "{0}.narrow(0, 0, 1)",
    "{0}.select(-1, 0)",
    "{0}.diagonal()",
    "{0}.unfold(0, 2, 1)",
    "{0}.as_strided((2,), (1,), {0}.storage_offset())",
    "{0}.as_strided({0}.shape, {0}.stride())",
    "{0}.detach()",
    "{0}.detach()[0]",
    "{0}.real",
    "{0}.imag",
    "{0}.conj()",
    "torch.view_as_real({0})",
    "torch.view_as_complex({0})",
    "{0}.view(torch.int32)",
    "{0}.view(torch.float32)",
    "{0}.to({0}.dtype)",
    "{0}.split(1)[0]",
    "{0}.unbind()[0]",
    "{0}.chunk(2, -1)[-1]",
    "{0}.tensor_split(2)[0]",
    "{0}.split_with_sizes([1, {0}.shape[0] - 1])[1]",
)
"""Results that may share memory with `{0}`."""

PIECES = (
    "{0}.split(1)",
    "{0}.unbind()",
    "{0}.chunk(2, -1)",
    "{0}.tensor_split(2)",
    "{0}.unbind(-1)",
)
"""Several views at once."""

IN_PLACE = (
    "{0}.mul_(2)",
    "{0}.add_(1)",
    "{0}.mul_({1})",
    "{0}.add_({1})",
    "{0}.sub_({1})",
    "{0}.copy_({1})",
    "{0}.zero_()",
    "{0}.fill_(3)",
    "{0}.neg_()",
    "{0}.relu_()",
    "{0}.clamp_(min=-1)",
    "{0}.masked_fill_({0} > 0, 2)",
    "{0}.addcmul_({1}, {1})",
    "{0}[0].mul_(2)",
    "{0}.view(-1)[1:].add_(1)",
    "{0}.t().mul_(2)",
    "{0}.detach().mul_(2)",
    "{0}.data.add_(1)",
    "{0}.unbind()[0].mul_(2)",
)
"""Writes to `{0}`."""

ASSIGNMENTS = (
    "{0}[0] = 3",
    "{0}[0] = {1}",
    "{0}[...] = {1}",
    "{0}[1:] = {1}",
    "{0}[{0} > 1] = 0",
)
"""Writes that are statements, not expressions."""

METADATA = (
    "{0}.t_()",
    "{0}.unsqueeze_(0)",
    "{0}.squeeze_()",
    "{0}.transpose_(0, -1)",
    "{0}.swapdims_(0, -1)",
    "{0}.as_strided_((2,), (1,))",
)
"""Changes of the size and stride of `{0}`."""

FRESH = (
    "{0}.mul(2)",
    "{0} + 1",
    "{0} * {0}",
    "{0} * {1}",
    "{0} + {1}",
    "{0} - {1}",
    "{0}.relu()",
    "{0}.square()",
    "{0}.tanh()",
    "{0}.abs()",
    "{0}.clone()",
    "{0}.sum()",
    "{0}.sum(0)",
    "{0}.amax()",
    "{0}.cumsum(0)",
    "{0}.matmul({1})",
    "{0}.matmul({1}.t())",
    "torch.cat([{0}, {1}])",
    "torch.stack([{0}, {1}])",
    "torch.where({0} > 0, {0}, {1})",
    "torch.maximum({0}, {1})",
    "{0}.repeat(2, *[1] * ({0}.dim() - 1))",
    "{0}.index_select(0, torch.tensor([0]))",
    "{0}[torch.tensor([0, 0])]",
    "{0}.to(torch.float64)",
    "torch.zeros_like({0})",
    "{0}.new_ones(2)",
    "torch.complex({0}, {0})",
    "{0}.max(0).values",
)
"""Results with memory of their own."""

CONTEXTS = ("torch.no_grad()", "torch.enable_grad()", "torch.no_grad()")

REAL_ONLY = ("relu", "clamp", ">", "max", "maximum", "torch.complex")
"""Parts of templates that eager has no kernel for if the tensor is complex: tracing only notices when the op runs."""
