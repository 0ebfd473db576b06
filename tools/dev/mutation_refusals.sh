#!/usr/bin/env bash
# Shows that refusal_test can fail: switches off one check at a time, in a copy of the sources, and says which test
# noticed. Minutes long (it builds a copy), so no part of ./dev test.
#
#   tools/dev/mutation_refusals.sh              in a copy that is made for it and removed
#   tools/dev/mutation_refusals.sh --copy DIR [BUILD]
#                                               in this copy of the tree, built already in BUILD (build/release) or not
#
# Ends with 0 when every mutation is caught by the test that is there for it.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)

# name | test that must fail | file | sed expression
mutations=(
  'expired lease|RefusalTest.AnExpiredLeaseAlsoWhileThereIsNoBroker|pool/lease_token.cpp|/^Result<void> check_in_force/,/^}/ s/if (now_unix_ms >= expires_unix_ms)/if (false \&\& now_unix_ms >= expires_unix_ms)/'
  'forged signature|RefusalTest.AForgedSignature|pool/lease_token.cpp|/^Result<LeaseToken> unseal/,/^}/ s/; !good) {/; false \&\& !good) {/'
  'copied lease without the key|RefusalTest.ACopiedLeaseWithoutItsKey|pool/lease_token.cpp|/^Result<void> check_proof/,/^}/ s/^      !good) {/      false \&\& !good) {/'
  'older fencing epoch|RefusalTest.AnOlderFencingEpochAtAnAgentThatWasRestarted|pool/agent/lease_gate.cpp|/^Result<void> LeaseGate::check_fence/,/^}/ s/device.epoch < floor->second/false \&\& device.epoch < floor->second/'
  'client without certificate|RefusalTest.AClientWithoutCertificate|pool/proto/channel.cpp|s/GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY/GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY/'
  'client of another authority|RefusalTest.AClientWhoseCertificateAnotherAuthorityIssued|pool/proto/channel.cpp|s/GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY/GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_BUT_DONT_VERIFY/'
  'lease that has ended|RefusalTest.ALeaseThatTheBrokerEnded|pool/agent/lease_gate.cpp|/^Result<void> LeaseGate::check_ended/,/^}/ s/if (over == ended_.end()) return {};/return {};/'
)

copy=''
if [ "${1:-}" = --copy ]; then
  copy=$(readlink -f "${2:?--copy takes a folder}")
  [ "$copy" != "$root" ] || { echo "mutation_refusals: --copy must not be the tree that this script is in" >&2; exit 2; }
else
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  (cd "$root" && git ls-files -z | xargs -0 cp --parents -t "$copy")
fi
cd "$copy"
folder=${3:-build/release}
build() {
  cmake --preset release -B "$folder" >build.log 2>&1 && ninja -C "$folder" cenote refusal_test >>build.log 2>&1
}
echo "building the copy in $copy"
build || { tail -20 build.log; exit 1; }
"$folder/tests/refusal_test" --gtest_brief=1 >unaltered.log 2>&1 || { echo "refusal_test fails without a mutation"; tail -20 unaltered.log; exit 1; }

status=0
for mutation in "${mutations[@]}"; do
  IFS='|' read -r name test file expression <<<"$mutation"
  cp -p "$file" original
  sed -i "$expression" "$file"
  if cmp -s "$file" original; then
    printf 'stale   %-30s its sed expression finds nothing in %s\n' "$name" "$file"
    status=1
    continue
  fi
  if ! build; then
    printf 'broken  %-30s does not compile: see build.log\n' "$name"
    status=1
  else
    "$folder/tests/refusal_test" >mutated.log 2>&1 || true
    failed=$(sed -n 's/^\[  FAILED  \] \(RefusalTest[.A-Za-z]*\)\(: .*\)\?$/\1/p' mutated.log | sort -u | tr '\n' ' ')
    case " $failed " in
      *" $test "*) printf 'caught  %-30s by %s\n' "$name" "$failed" ;;
      *) printf 'MISSED  %-30s %s passes with it (failed: %s)\n' "$name" "$test" "${failed:-none}"; status=1 ;;
    esac
  fi
  cp original "$file"  # newer than what was built of the mutation
done
exit "$status"
