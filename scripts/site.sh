#!/usr/bin/env bash
# Builds the documents as a site, in site/; a warning is an error. With arguments, which go to mkdocs: scripts/site.sh serve
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_venv.sh"
use_environment docs
cd "$repository"

export NO_MKDOCS_2_WARNING=1 PYTHONPATH="$repository"
exec "$PYTHON" -m mkdocs "${@:-build}" --strict
