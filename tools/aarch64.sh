#!/bin/bash
# Cross-compiles the native modules for 64-bit ARM, and runs their tests under emulation:
#
#     tools/aarch64.sh [PYTEST OPTIONS AND FILES]
#
# Everything is downloaded and built once, under build/aarch64: a Debian root with Python (from the
# release of this machine, or RELEASE), the packages that tests need, and the modules. See
# docs/contributing/platforms.md.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$PWD/build/aarch64
python=${PYTHON:-python3}

missing=()
for tool in aarch64-linux-gnu-g++ qemu-aarch64 mmdebstrap cmake ninja; do
  command -v $tool > /dev/null || missing+=($tool)
done
if ((${#missing[@]})); then
  echo "aarch64: skipped, because ${missing[*]} cannot be found. Debian and Ubuntu:" \
    "apt install g++-aarch64-linux-gnu qemu-user mmdebstrap cmake ninja-build"
  exit 0
fi

# Only unpacked, not configured: nothing but Python runs from it, under emulation.
if [ ! -e "$build/root/usr/bin/python3" ]; then
  echo "== Fetching Python for aarch64"
  rm -rf "$build/root"
  mkdir -p "$build"
  mmdebstrap --quiet --variant=extract --architectures=arm64 \
    --include=python3,libpython3-dev,libstdc++6 \
    "${RELEASE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}" "$build/root"
fi

# Tests start `sys.executable`, so it must be a program that this machine can run.
cat > "$build/python" << END
#!/bin/bash
export PYTHONPATH="$build/install:$build/packages" DISMEC_PYTHON="$build/python"
export DISMEC_EMULATOR="qemu-aarch64 -L $build/root" CMAKE_TOOLCHAIN_FILE="$PWD/tools/aarch64.cmake"
exec qemu-aarch64 -L "$build/root" "$build/root/usr/bin/python3" "\$@"
END
chmod +x "$build/python"
version=$("$build/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

if [ ! -e "$build/packages/complete" ]; then
  echo "== Fetching the packages that tests need"
  rm -rf "$build/packages"
  $python -m pip install --quiet --target "$build/packages" --only-binary=:all: \
    --implementation cp --python-version "$version" --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    numpy scipy scikit-learn click rich pytest hypothesis safetensors
  # No wheel exists for ARM. It is a plain C++ library, loaded by the file name it gets here.
  CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ LDSHARED="aarch64-linux-gnu-g++ -shared" \
    $python -m pip install --quiet --target "$build/packages" --no-deps \
    --no-binary=liblinear-official --no-cache-dir liblinear-official
  $python -m pip install --quiet --target "$build/packages/build" "nanobind>=2.5"
  echo "import os, sys; sys.executable = os.environ['DISMEC_PYTHON']" \
    > "$build/packages/sitecustomize.py"
  touch "$build/packages/complete"
fi

echo "== Cross-compiling"
# Python's ARM headers include one under this path; the C library's come with the compiler.
mkdir -p "$build/include/aarch64-linux-gnu"
ln -sfn "$build/root/usr/include/aarch64-linux-gnu/python$version" \
  "$build/include/aarch64-linux-gnu/python$version"
cmake -G Ninja -S . -B "$build/cmake" --toolchain tools/aarch64.cmake \
  -DPython_EXECUTABLE="$build/python" -DPython_INCLUDE_DIR="$build/root/usr/include/python$version" \
  -Dnanobind_DIR="$build/packages/build/nanobind/cmake" \
  -DCMAKE_CXX_FLAGS="-isystem \"$build/include\"" > "$build/cmake.log"
cmake --build "$build/cmake"
rm -rf "$build/install"
mkdir "$build/install"
cp -r src/dismec "$build/install/"
rm -f "$build"/install/dismec/_native_*.so
cp "$build"/cmake/_native_*.so "$build/install/dismec/"
mkdir "$build/install/dismec.dist-info"
printf 'Metadata-Version: 2.1\nName: dismec\nVersion: %s\n' \
  "$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" > "$build/install/dismec.dist-info/METADATA"

# Checks that the loops of passes, sixteen-bit sums, float16 and top k are vectorized.
code=$(aarch64-linux-gnu-objdump -d --no-show-raw-insn "$build"/install/dismec/_native_neon.*so)
for instruction in 'fmla.*\.4s' 'smlal2?.*\.4s' 'fcvtl.*\.4s' 'tbl.*\.16b' 'tbl.*\.8b' 'fmaxv'; do
  found=$(grep -cE "\s$instruction" <<< "$code") || true
  echo "== $found instructions ${instruction//\\/} in the module for NEON"
  ((found > 0))
done

selected=("$@")
(($#)) || selected=(-m "native and not slow and not cluster and not data")
echo "== Tests under emulation"
"$build/python" -c 'from dismec.cpu import kernels; assert kernels.isa == "neon", kernels.isa'
"$build/python" -m pytest -q -p no:cacheprovider --hypothesis-profile=few "${selected[@]}"
