;; Names handles that were never given out.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_events") (param $n i32) (result i32) (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (local $i i32)
    (loop $next
      (i32.store (i32.add (i32.const 66560) (i32.shl (local.get $i) (i32.const 2))) (i32.sub (i32.const -1) (local.get $i)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (local.get $max))))
    (local.get $max)))
