;; Score mode in WebAssembly text: what was used longest ago has the lowest score and goes first.
(module (memory (export "memory") 2) ;; policy_buffer: 8 KiB each from 0x8000, so events at 0xa000, scores at 0x10000
  (func (export "mooncake_eviction_v1") (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param i32 i32) (result i32)
    (i32.add (i32.const 0x8000) (i32.shl (local.get 0) (i32.const 13))))
  (func (export "policy_score") (param $n i32) (result i32) (local $i i32)
    (loop $next (if (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)) (then
      (f64.store (i32.add (i32.const 0xfff8) (i32.shl (local.get $i) (i32.const 3))) ;; score i - 1 = now_ms of record i
        (f64.convert_i64_u (i64.load (i32.add (i32.const 0xa028) (i32.shl (local.get $i) (i32.const 6)))))) (br $next))))
    (i32.sub (local.get $n) (i32.const 1))))
