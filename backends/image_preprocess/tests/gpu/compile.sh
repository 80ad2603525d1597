# Sourced by the build scripts beside it: sets src, cuda and work (a folder of objects that goes away at the end), and
# defines `compile ARCHS FLAGS FILE…`: the GPU part and these C++ files as objects in $work. ARCHS: numbers such as 90,
# 90 where empty. FLAGS: more flags for g++. Needs nvcc and g++.
src=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../src" && pwd)
cuda=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n "s/^#\$ TOP=//p" | head -1)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT

compile() {
  local archs=$1 more=$2 arch file gencode=()
  shift 2
  for arch in ${archs:-90}; do gencode+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
  # shellcheck disable=SC2086  # several flags
  for file in "$src"/core/*.cc "$src"/gpu/*.cc "$src"/../cmake/stderr.cc "$@"; do
    g++ -std=c++17 -O3 -fPIC -fvisibility=hidden -Wall -Wextra -Wconversion -Werror -ffp-contract=off \
      -DTRITONSTACK_MULTIVERSION -I"$src" -isystem "$cuda/include" $more \
      -c "$file" -o "$work/$(basename "$(dirname "$file")")_$(basename "$file").o"
  done
  for file in "$src"/gpu/*.cu; do
    nvcc -std=c++17 -O3 -lineinfo "${gencode[@]}" -I"$src" -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden \
      --Werror all-warnings -c "$file" -o "$work/$(basename "$file").o"
  done
}
