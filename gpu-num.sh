set -u
repo=$PWD; prefix=/tmp/spillway-deps
mkdir -p $prefix && tar -xzf gpu-deps.tar.gz -C $prefix
libraries=$prefix/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH=$libraries:$prefix/lib/$(uname -m)-linux-gnu:${LD_LIBRARY_PATH:-}
export PKG_CONFIG_PATH=$libraries/pkgconfig:$prefix/usr/share/pkgconfig PKG_CONFIG_SYSROOT_DIR=$prefix
mkdir -p /tmp/new /tmp/old && tar -xzf gpu-merge-src.tar.gz -C /tmp/new && tar -xzf gpu-old-src.tar.gz -C /tmp/old
build() { cd "$1" && shift && cmake --preset release -DCMAKE_PREFIX_PATH=$prefix/usr > cfg.txt 2>&1 && cmake --build build/release --parallel 16 --target "$@" > build.txt 2>&1 || { grep -E "error|FAILED" build.txt cfg.txt | head -20; return 1; }; echo "[$SECONDS s] built $PWD"; }
(build /tmp/new spillway cuda_test parity_test generation_test) || exit 1
(build /tmp/old spillway) || exit 1
cd /tmp/new
python3 bench/gpu_tests.py --build build/release --out $OUT/t --timeout 140 2>&1 | tail -25
mkdir -p $OUT/logs; grep -l FAILED $OUT/t/*.txt 2>/dev/null | head -3 | xargs -I{} cp {} $OUT/logs/ ; rm -rf $OUT/t
echo "[$SECONDS s] tested"
O=/tmp/old/build/release/bin/spillway N=build/release/bin/spillway
export CUDA_VISIBLE_DEVICES=0
echo "GPU F16"; timeout 60 python3 bench/two_programs.py $O $N --model dummy:llama-2-7b --rounds 5 --tokens 400 -- --device cuda
echo "GPU F16 int8 KV, 2000"; timeout 60 python3 bench/two_programs.py $O $N --model dummy:llama-2-7b:q4_0 --rounds 5 --tokens 400 --prompt-tokens 1500 -- --device cuda --kv-type int8
echo "CPU 16"; timeout 50 python3 bench/two_programs.py $O $N --model dummy:smollm2-135m:q4_1 --rounds 7 --tokens 256 --prompt-tokens 512 --temp 0.8 -- --device cpu --threads 2
echo "[$SECONDS s] done"
