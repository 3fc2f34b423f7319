#!/usr/bin/env bash
# Draws docs/report.png: the report of a committed dump, as Chromium shows it. Look at it before you commit it.
#
#     bash docs/make_report_picture.sh
#
# Needs Chromium (apt-get install chromium) and the environment of `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
SAMPLE=dumps/samples/20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
# It exits 1, because there is something to report.
.venv/bin/gemma4-triage report "$SAMPLE" --out "$WORK/report.html" >"$WORK/terminal.txt" || test $? -eq 1
chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
  --hide-scrollbars --user-data-dir="$WORK/profile" --screenshot="$WORK/report.png" --window-size=1000,1640 \
  "file://$WORK/report.html"
# Few colours: a quarter of the size, and nothing that can be seen is lost.
.venv/bin/python - "$WORK/report.png" docs/report.png <<'PY'
import sys

from PIL import Image

Image.open(sys.argv[1]).convert("RGB").quantize(64).save(sys.argv[2], optimize=True)
PY
echo "Wrote docs/report.png"
