"""The variants in which aotgrad and the peer are compared with eager.

>>> VARIANTS["dynamic core"].dynamic
True
"""

from __future__ import annotations

import torch

from aotgrad.conformance.variants import CallVariant, Compilation, First, OperatorForm

VARIANTS = {
    variant.name: variant
    for variant in (
        CallVariant("static"),
        CallVariant("float32", dtype=torch.float32),
        CallVariant("complex128", dtype=torch.complex128),
        CallVariant("int64", dtype=torch.int64),
        CallVariant("bool", dtype=torch.bool),
        CallVariant("non-contiguous", first=First.NON_CONTIGUOUS),
        CallVariant("first without grad", first=First.NO_GRAD),
        CallVariant("in-place", form=OperatorForm.IN_PLACE),
        CallVariant("out=", form=OperatorForm.OUT),
        CallVariant("core", decompositions="core"),
        CallVariant("inductor's", decompositions="inductor"),
        CallVariant("dynamic", dynamic=True),
        CallVariant("dynamic core", dynamic=True, decompositions="core"),
        CallVariant("dynamic inductor's", dynamic=True, decompositions="inductor"),
        CallVariant("higher-order", compilation=Compilation.DYNAMO),
        CallVariant("through Inductor", compilation=Compilation.INDUCTOR, every=5),
    )
}
"""By name. `inductor's` are Inductor's decompositions with eager halves."""
