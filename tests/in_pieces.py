"""Inductor for a few ops at a time: any graph is cut as graphs with equal layers are.

IN_PIECES.cut(graph, shared)        pieces of `OPS_OF_A_PIECE` ops each
"""

from __future__ import annotations

import math

import torch.fx as fx

from aotgrad.backends.inductor.backend import InductorBackend, Shared
from aotgrad.backends.layers import Layers, has_writes_inside, inputs_of_pieces, may_be_an_input, may_be_in_pieces
from aotgrad.backends.pieces import Cut, copy_with_sizes
from aotgrad.backends.uncompiled import must_be_cut

OPS_OF_A_PIECE = 3


class InPieces(InductorBackend):
    """Cuts where no op and its items come apart."""

    def cut(self, graph: fx.Graph, shared: Shared) -> Cut | None:
        if must_be_cut(graph) or has_writes_inside(graph) or not all(map(may_be_in_pieces, graph.nodes)):
            return super().cut(graph, shared)
        layers = Layers.of(copy_with_sizes(graph))
        borders = range(len(layers.ops) % OPS_OF_A_PIECE, len(layers.ops), OPS_OF_A_PIECE)
        possible = [each for each in borders if layers.bytes_across(each, len(layers.ops)) < math.inf]
        if not possible:
            return None
        cut = layers.cut_at(possible)
        return cut if all(map(may_be_an_input, inputs_of_pieces(cut))) else None


IN_PIECES = InPieces()
