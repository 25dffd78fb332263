#!/bin/sh
# Fails on an include against the direction of the folders, and on what would make actors depend on
# anything but their messages: clocks, global randomness, mutable statics, threads, and iteration in
# an order that differs from run to run.
#
#   tests/check_includes.sh [ROOT]
#
# A line in actors/ may keep what is forbidden if it ends in "// allowed: REASON".
set -eu
root=${1:-$(dirname "$0")/..}
cd "$root"

files=$(find messages gpu fit actors cluster apps -type f \
  \( -name '*.hpp' -o -name '*.h' -o -name '*.cpp' -o -name '*.hip' \) 2>/dev/null | sort)
if [ -z "$files" ]; then
  echo "check_includes: no sources under $root" >&2
  exit 2
fi

# The names are the project's own and hold no blanks.
# shellcheck disable=SC2086
awk '
BEGIN {
  may["messages"] = " messages "
  may["gpu"]      = " gpu "
  may["fit"]      = " fit messages "
  may["actors"]   = " actors gpu fit messages "
  may["cluster"]  = " cluster actors gpu fit messages "
  may["apps"]     = " apps cluster actors gpu fit messages "

  # Pattern and reason, matched against code without comments and strings.
  forbid("(system|steady|high_resolution|file|utc)_clock", "a real clock; take the time from the environment")
  forbid("(^|[^A-Za-z0-9_.>])(std::|::)?(gettimeofday|clock_gettime|localtime|gmtime)[ ]*\\(|::clock[ ]*\\(", "a real clock; take the time from the environment")
  forbid("(^|[^A-Za-z0-9_.>])(std::|::)?time[ ]*\\([ ]*(nullptr|NULL|0|&)", "a real clock; take the time from the environment")
  forbid("random_device|(^|[^A-Za-z0-9_.>])(std::|::)?(rand|srand|drand48|getrandom)[ ]*\\(|(^|[^A-Za-z0-9_])::random[ ]*\\(", "global randomness; draw from the environment")
  forbid("std::(thread|jthread|async)([^A-Za-z0-9_]|$)|(^|[^A-Za-z0-9_])detached([^A-Za-z0-9_]|$)", "a thread of its own; actors run where the node says")
  forbid("sleep_for|sleep_until|(^|[^A-Za-z0-9_])(usleep|nanosleep)[ ]*\\(", "a blocking wait")
  forbid("unordered_(map|set|multimap|multiset)", "an order that depends on hashes; use std::map or std::vector")
  forbid("std::(map|set|multimap|multiset)<[^,<>]*\\*", "an order that depends on addresses; use ids as keys")
  forbid("std::(map|set|multimap|multiset)<[ ]*(std::(shared|unique)_ptr<|caf::)", "an order that depends on addresses; use ids as keys")
  forbid("(^|[^A-Za-z0-9_])thread_local([^A-Za-z0-9_]|$)", "state outside an actor")
}

function forbid(pattern, reason) { patterns[++rules] = pattern; reasons[rules] = reason }

function report(what) {
  printf "%s:%d: %s\n", FILENAME, FNR, what
  faults++
}

FNR == 1 {
  split(FILENAME, path, "/")
  folder = path[1]
  in_comment = 0
}

/^[ \t]*#[ \t]*include[ \t]*"/ {
  name = $0
  sub(/^[^"]*"/, "", name)
  sub(/".*$/, "", name)
  top = name
  sub(/\/.*$/, "", top)
  if (top == name || !(top in may)) {
    report("include \"" name "\" by its path from the root of the repository")
  } else if (index(may[folder], " " top " ") == 0) {
    report(folder "/ must not include " top "/ (\"" name "\"); it may include:" may[folder])
  }
}
/^[ \t]*#[ \t]*include[ \t]*<(messages|gpu|fit|actors|cluster|apps)\// {
  report("include headers of this project in quotes, not in angle brackets")
}

folder == "actors" {
  if ($0 ~ /\/\/ allowed: *[^ ]/) { next }
  code = strip($0)
  for (i = 1; i <= rules; i++) {
    if (code ~ patterns[i]) { report(reasons[i]) }
  }
  if (is_variable(code)) { report("state outside an actor") }
}

# The line without comments and the contents of strings.
function strip(line,    start, end) {
  gsub(/\\"/, "", line)
  gsub(/"[^"]*"/, "\"\"", line)
  if (in_comment) {
    end = index(line, "*/")
    if (end == 0) { return "" }
    line = substr(line, end + 2)
    in_comment = 0
  }
  sub(/\/\/.*$/, "", line)
  while ((start = index(line, "/*")) > 0) {
    end = index(substr(line, start), "*/")
    if (end == 0) {
      in_comment = 1
      return substr(line, 1, start - 1)
    }
    line = substr(line, 1, start - 1) substr(line, start + end + 1)
  }
  return line
}

# Mutable static storage: a static variable anywhere, or a variable at namespace scope, which the
# code style puts at the first column. Functions are told by their parenthesis.
function is_variable(code,    head) {
  if (code ~ /(^|[^A-Za-z0-9_])(const|constexpr|constinit const|using|namespace|struct|class|enum|template|typedef|friend|extern|static_assert|concept|return|case|public|private|protected)([^A-Za-z0-9_]|$)/) { return 0 }
  head = code
  sub(/[={;].*$/, "", head)
  if (head == code || head ~ /\(/) { return 0 }
  if (code ~ /^[ \t]*(inline[ ]+)?static[ ]/) { return 1 }
  return code ~ /^(inline[ ]+)?[A-Za-z_][A-Za-z0-9_:<>,* ]*[ *&>][a-z_][A-Za-z0-9_]*[ ]*(=[^=]|\{[^}]*\}[ ]*;|;)/
}

END {
  if (faults > 0) {
    printf "check_includes: %d fault%s\n", faults, faults == 1 ? "" : "s"
    exit 1
  }
}
' $files >&2
