from __future__ import annotations
from typing import Any
def text(result: Any) -> str: return str(result)
