#!/bin/bash
# Checks the formatting of every C file under version control against .clang-format. Usage: check-format.sh
# Exit: 0 all well, 1 a file differs, 2 the check cannot be made. `clang-format -i FILE` mends a file.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "check-format: $*" >&2; }
command -v clang-format >/dev/null || { say "clang-format is missing: tools/packages.sh test"; exit 2; }
mapfile -d '' -t files < <(git ls-files -z -- '*.c' '*.h')
[ ${#files[@]} -gt 0 ] || { say "there is no C file under version control here"; exit 2; }
if ! clang-format --dry-run -Werror "${files[@]}"; then
    say "these files are not formatted as .clang-format says; clang-format -i FILE mends them"
    exit 1
fi
