"""Test results of a run, from results.json."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_results(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read the results of each test manifest; leave out invalid entries, and return {} if the file is invalid."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    pairs = results.items() if isinstance(results, dict) else ()
    return {name: result for name, result in pairs if _is_result(result)}


def _is_result(result: object) -> bool:
    return isinstance(result, dict) and isinstance(result.get("wer"), float) and math.isfinite(result["wer"])
