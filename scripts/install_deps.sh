#!/usr/bin/env bash
# Installs the Debian packages that Spillway needs; does nothing when they are all there.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/install_deps.sh [product|test]
  product   what building and running the program needs (default)
  test      product, and what scripts/test.sh needs
Installs with apt-get, as root or through sudo. Exit codes: 0 all there, 1 failed, 2 wrong usage.
EOF
}

product_packages=(
  g++ cmake ninja-build pkg-config ccache
  libhwy-dev libpcre2-dev liburing-dev libedit-dev libxxhash-dev coinor-libclp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev prometheus-cpp-dev
  libboost1.81-dev
  python3 python3-venv
)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev git clang-format-14 shellcheck xz-utils unzip)

case "${1:-product}" in
  product) packages=("${product_packages[@]}") ;;
  test) packages=("${product_packages[@]}" "${test_packages[@]}") ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
if (($# > 1)); then usage >&2; exit 2; fi

# Sets `missing` to the packages that are not installed. An architecture suffix (libfmt-dev:arm64) does not matter.
find_missing() {
  local installed package
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  missing=()
  for package in "${packages[@]}"; do
    grep -qFx "installed $package" <<<"$installed" || missing+=("$package")
  done
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "install_deps: this is not a Debian-like system; install what these packages hold yourself: ${packages[*]}" >&2
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
  # Without a terminal nobody can type a password: only a sudo that does not ask will do.
  if [[ ! -t 0 ]]; then as_root=(sudo -n); fi
  if ! command -v sudo >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    echo "install_deps: not root, and sudo does not work here. Ask someone who is root to run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -q "$@" </dev/null
}
install() { apt install -y --no-install-recommends "${missing[@]}"; }

# Package lists that know all the names are good enough; when a download then fails, they were too old.
lists_are_fresh=0
for attempt in 1 2 3 4; do
  if ((lists_are_fresh == 0)) && { ((attempt > 1)) || ! apt -s install "${missing[@]}" >/dev/null 2>&1; }; then
    if apt update; then lists_are_fresh=1; fi
  fi
  if install; then break; fi
  if ((attempt == 4)); then break; fi
  echo "install_deps: attempt $attempt failed; trying again in $((attempt * 5)) s" >&2
  sleep $((attempt * 5))
done

find_missing
if ((${#missing[@]} > 0)); then
  echo "install_deps: still missing: ${missing[*]}. Check the network and the package sources, or run:" >&2
  echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "all ${#packages[@]} packages are installed"
