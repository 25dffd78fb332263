#!/bin/sh
# What the eldr command answers to good and bad command lines: exit codes and sentences.
#
#   command_line_test.sh ELDR SOURCE_DIR
set -eu
eldr=$1
demo=$2/apps/demo.yaml
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failures=0

# expect CODE PATTERN COMMAND...: the exit code, and a line that the output holds, if given.
expect() {
  wanted=$1 pattern=$2
  shift 2
  code=0
  "$@" > said 2>&1 || code=$?
  if [ $code -ne "$wanted" ] || { [ -n "$pattern" ] && ! grep -q -- "$pattern" said; }; then
    echo "exit code $code, but must be $wanted, with a line like '$pattern': $*"
    cat said
    failures=$((failures + 1))
  fi
}

nodes='nodes: [{name: g, role: gateway, listen: H:7400}, {name: r, role: router, listen: H:7401},
  {name: p, role: prefill, listen: H:7402}, {name: d, role: decode, listen: H:7403}]'
echo "$nodes" | sed 's/H:/127.0.0.1:/g' > "it's here.yaml"
echo "$nodes" | sed 's/H:/203.0.113.7:/g' > elsewhere.yaml
printf 'tiemouts: {}\n' | cat - elsewhere.yaml > wrong.yaml

expect 0 '^eldr [0-9]*\.[0-9]*\.[0-9]*$' "$eldr" --version
expect 0 '^backends: host' "$eldr" --version
expect 0 'Subcommands:' "$eldr" --help
expect 2 'subcommand is required' "$eldr"
expect 2 "'uo' is not a command; did you mean 'up'?" "$eldr" uo
expect 2 'manifest is required' "$eldr" up
expect 2 '--nonsense' "$eldr" manifest check --nonsense "$demo"

expect 0 '8 nodes (1 gateway, 1 router, 2 prefill, 4 decode)' "$eldr" manifest check "$demo"
expect 0 '^  lease_ms: 30000$' "$eldr" manifest check --print "$demo"
expect 0 '^| .timeouts.lease_ms. |' "$eldr" manifest keys
expect 1 "^eldr: wrong.yaml:1:1: 'tiemouts' is not a key of the manifest; did you mean 'timeouts'?$" \
  "$eldr" manifest check wrong.yaml
expect 1 '^eldr: none.yaml: cannot read the manifest: No such file' "$eldr" up none.yaml
expect 1 'this is a folder' "$eldr" up .

# Printed manifests are manifests.
"$eldr" manifest check --print "$demo" > printed.yaml
"$eldr" manifest check --print printed.yaml > again.yaml
expect 0 '' cmp printed.yaml again.yaml

expect 0 " node --manifest '.*/it'\\\\''s here.yaml' --name d  # on 127.0.0.1:7403$" \
  "$eldr" up --print-commands "it's here.yaml"
[ ! -e cluster.token ] || { echo "printing commands created a token"; failures=1; }
expect 1 'none of its nodes listens on an address of this machine' "$eldr" up elsewhere.yaml
touch secret && chmod 644 secret
echo 'token_file: secret' >> "it's here.yaml"
expect 1 'chmod 600 secret$' "$eldr" up "it's here.yaml"

# Streams that are closed, full or not read.
expect 1 'standard output' sh -c "'$eldr' manifest keys > /dev/full"
expect 1 'standard output' sh -c "'$eldr' --version >&-"
expect 0 '' sh -c "'$eldr' manifest keys | head -c 1 > /dev/null"

[ $failures -eq 0 ] || exit 1
echo "all command lines were answered as they should be"
