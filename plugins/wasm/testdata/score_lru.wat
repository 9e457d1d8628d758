;; The whole policy: the least recently used goes first.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_score") (param $n i32) (result i32)
    (local $i i32)
    (loop $next
      (f64.store (i32.add (i32.const 132096) (i32.shl (local.get $i) (i32.const 3)))
        (f64.convert_i64_u (i64.load (i32.add (i32.const 33896) (i32.shl (local.get $i) (i32.const 6))))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.sub (local.get $n) (i32.const 1)))))
    (i32.sub (local.get $n) (i32.const 1))))
