"""`timm`: four families of image models, small ones."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

import torch

from scripts.workflows.programs.common import STEPS, train
from scripts.workflows.run import Run


class Stub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces torchvision, which timm imports to read and augment images, and which has no build for this torch."""

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """A module of the usual kind."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = empty_class  # pyright: ignore[reportAttributeAccessIssue]


class Anything(type):
    """A class that has every attribute, as enumerations do that timm reads."""

    def __getattr__(cls, name: str) -> object:
        return empty_class(name)


def empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything(name, (), {})


sys.meta_path.append(Stub())
import timm  # noqa: E402


def classify(run: Run, name: str, size: int, dtype: torch.dtype = torch.float32, **settings: object) -> None:
    """Train a model of timm, without weights from elsewhere, on random images. Batch norms of few values amplify rounding:
    models that have them are in float64."""
    model = run.compile(timm.create_model(name, pretrained=False, num_classes=10, **settings).to(dtype))
    images, labels = torch.randn(STEPS, 2, 3, size, size, dtype=dtype), torch.randint(10, (STEPS, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    train(run, model, optimizer, lambda step: torch.nn.functional.cross_entropy(model(images[step]), labels[step]))


def timm_resnet(run: Run) -> None:
    """ResNet-10t: convolutions and batch norms."""
    classify(run, "resnet10t", 64, torch.float64)


def timm_vit(run: Run) -> None:
    """A vision transformer of three blocks, with stochastic depth."""
    classify(run, "vit_tiny_patch16_224", 64, img_size=64, depth=3, drop_path_rate=0.2)


def timm_convnext(run: Run) -> None:
    """ConvNeXt-atto: depthwise convolutions, layer norms and scales."""
    classify(run, "convnext_atto", 64, depths=(1, 1, 2, 1), dims=(16, 32, 64, 64))


def timm_mobilenet(run: Run) -> None:
    """MobileNetV3-small: inverted residuals with squeeze and excitation."""
    classify(run, "mobilenetv3_small_050", 64, torch.float64)
