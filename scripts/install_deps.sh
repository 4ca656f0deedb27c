#!/usr/bin/env bash
# Installs the packages that Spillway needs, on Debian and Ubuntu; does nothing when they are all there.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/install_deps.sh [product|test]
  product   what building and running the program needs (default)
  test      product, and what scripts/test.sh needs
Installs with apt-get, as root or through sudo (Debian 12, Ubuntu 24.04 and later). Elsewhere it says what to install.
Exit codes: 0 all there, 1 failed, 2 wrong usage.
EOF
}

product_packages=(
  g++ cmake ninja-build pkg-config ccache
  libhwy-dev libpcre2-dev liburing-dev libedit-dev libxxhash-dev coinor-libclp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev prometheus-cpp-dev
  libboost-dev
  python3 python3-venv
)
fedora_packages=(
  gcc-c++ cmake ninja-build pkgconf-pkg-config ccache
  highway-devel pcre2-devel liburing-devel libedit-devel xxhash-devel coin-or-Clp-devel cli11-devel spdlog-devel fmt-devel json-devel prometheus-cpp-devel
  boost-devel
  python3
)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev git clang-format-14 shellcheck xz-utils unzip)

case "${1:-product}" in
  product) packages=("${product_packages[@]}") ;;
  test) packages=("${product_packages[@]}" "${test_packages[@]}") ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
if (($# > 1)); then usage >&2; exit 2; fi

# Sets `missing` to the packages that are not installed. An architecture suffix (libfmt-dev:arm64) does not matter. Boost
# is there with any version from 1.74 on: libboost-dev is a distribution's usual one, libboost1.81-dev another.
find_missing() {
  local installed package
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 'libboost1.*-dev' 2>/dev/null || true)
  missing=()
  for package in "${packages[@]}"; do
    if grep -qFx "installed $package" <<<"$installed"; then continue; fi
    if [[ $package == libboost-dev ]] && grep -qE '^installed libboost1\.(7[4-9]|[89][0-9]|[0-9]{3})-dev$' <<<"$installed"; then continue; fi
    missing+=("$package")
  done
}

os_release=${SPILLWAY_OS_RELEASE:-/etc/os-release}  # tests have their own
# shellcheck source=/dev/null
system=$(. "$os_release" 2>/dev/null && echo "${ID:-} ${VERSION_ID:-} ${ID_LIKE:-}") || system=''
case "$system" in
  "ubuntu 20."* | "ubuntu 22."*)
    read -r _ version _ <<<"$system"
    echo "install_deps: Ubuntu $version is too old: it has CMake before 3.25, Highway before 1.0 and g++ before 12; use Ubuntu 24.04, Debian 12, or a container of one" >&2
    exit 1
    ;;
  fedora* | *rhel* | *fedora*)
    echo "install_deps: not tested on Fedora; the packages should be: sudo dnf install ${fedora_packages[*]} (what dnf does not know comes from source), then: scripts/quickstart.sh --no-deps" >&2
    exit 1
    ;;
esac
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps: this is not a Debian-like system; install what these packages hold yourself: ${packages[*]}; then: scripts/quickstart.sh --no-deps" >&2
  exit 1
fi
find_missing
if ((${#missing[@]} == 0)); then
  echo "all ${#packages[@]} packages are installed"
  exit 0
fi
echo "missing packages: ${missing[*]}"

as_root=()
if ((EUID != 0)); then
  as_root=(sudo)
  # Without a terminal no password can be typed, so only a sudo that needs none can be used.
  if [[ ! -t 0 ]]; then as_root=(sudo -n); fi
  if ! command -v sudo >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    echo "install_deps: not root, and sudo does not work here. Ask someone who is root to run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Runs apt-get; its output also goes to $log.
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -q "$@" </dev/null 2>&1 | tee "$log"
}
# Returns whether the last apt failed for a reason that another attempt may not meet.
network_failed() {
  grep -qiE 'failed to fetch|unable to fetch|could not (resolve|connect)|temporary failure|timed out|connection (failed|refused|reset)|hash sum mismatch|network is unreachable|^ *50[0-9] +[A-Z]' "$log"
}
fail() {
  echo "install_deps: $(grep -m1 '^E:' "$log" || echo "apt-get failed"); $1" >&2
  exit 1
}
# Runs apt with these arguments, four times at most, and again only after a failure of the network; then with new lists.
apt_again() {
  local attempt
  for attempt in 1 2 3 4; do
    # An update that could not fetch some lists says so and succeeds.
    if apt "$@" && ! { [[ $1 == update ]] && network_failed; }; then return 0; fi
    if ((attempt == 4)) || ! network_failed; then return 1; fi
    echo "install_deps: attempt $attempt failed; trying again in $((attempt * 5)) s" >&2
    sleep $((attempt * 5))
    if [[ $1 == install ]]; then apt update || true; fi
  done
}

# Package lists that know all the names are good enough; when a download then fails, they were too old.
if ! apt -s install "${missing[@]}" >/dev/null; then
  apt_again update || true
  apt -s install "${missing[@]}" >/dev/null || fail "the package lists do not have all of: ${missing[*]}; check the network and the package sources"
fi
apt_again install -y --no-install-recommends "${missing[@]}" || fail "check the network and the package sources"

find_missing
if ((${#missing[@]} > 0)); then
  echo "install_deps: still missing: ${missing[*]}. Check the network and the package sources, or run:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "all ${#packages[@]} packages are installed"
