;; Scores are NaN for odd handles and minus the handle for the others.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  (func (export "policy_score") (param $n i32) (result i32)
    (local $i i32) (local $h i32)
    (loop $next
      (local.set $h (i32.load (i32.add (i32.const 33860) (i32.shl (local.get $i) (i32.const 6)))))
      (f64.store (i32.add (i32.const 132096) (i32.shl (local.get $i) (i32.const 3)))
        (select (f64.const nan) (f64.neg (f64.convert_i32_u (local.get $h))) (i32.and (local.get $h) (i32.const 1))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.sub (local.get $n) (i32.const 1)))))
    (i32.sub (local.get $n) (i32.const 1))))
