"""Inductor for a few ops at a time: any graph is cut as graphs with equal layers are.

IN_PIECES.cut(graph, shared)        pieces of `OPS_OF_A_PIECE` ops each
"""

from __future__ import annotations

import math

import torch.fx as fx

from aotgrad.backends.inductor.backend import InductorBackend, Shared
from aotgrad.backends.layers import Layers, cut_where
from aotgrad.backends.pieces import Cut
from aotgrad.backends.uncompiled import must_be_cut

OPS_OF_A_PIECE = 3


class InPieces(InductorBackend):
    """Cuts where no op and its items come apart."""

    def cut(self, graph: fx.Graph, shared: Shared) -> Cut | None:
        return super().cut(graph, shared) if must_be_cut(graph) else cut_where(graph, borders_every_few_ops)


def borders_every_few_ops(layers: Layers) -> list[int]:
    borders = range(len(layers.ops) % OPS_OF_A_PIECE, len(layers.ops), OPS_OF_A_PIECE)
    return [each for each in borders if layers.bytes_across(each, len(layers.ops)) < math.inf]


IN_PIECES = InPieces()
