;; Names what is leased and nothing else.
(module
  (memory (export "memory") 4)
  (func (export "mooncake_eviction_v1") (result i32) (i32.const 0))
  (func (export "policy_buffer") (param $kind i32) (param $size i32) (result i32)
    (i32.add (i32.const 1024) (i32.mul (local.get $kind) (i32.const 32768))))
  (func (export "policy_init") (result i32) (i32.const 0))
  ;; A byte for each of 1,024 handles, from 140,000 on: 1 is leased.
  (func (export "policy_events") (param $n i32) (result i32)
    (local $at i32) (local $h i32) (local $kind i32)
    (local.set $at (i32.const 33792))
    (block $end
      (loop $next
        (br_if $end (i32.eqz (local.get $n)))
        (local.set $kind (i32.load8_u (local.get $at)))
        (local.set $h (i32.load offset=4 (local.get $at)))
        (if (i32.lt_u (local.get $h) (i32.const 1024))
          (then
            (if (i32.eq (local.get $kind) (i32.const 4)) ;; REMOVE
              (then (i32.store8 offset=140000 (local.get $h) (i32.const 0))))
            (if (i32.or (i32.eq (local.get $kind) (i32.const 2)) (i32.eq (local.get $kind) (i32.const 10))) ;; ACCESS, RESTORE
              (then (if (i32.and (i32.load8_u offset=1 (local.get $at)) (i32.const 4))
                (then (i32.store8 offset=140000 (local.get $h) (i32.const 1))))))))
        (local.set $at (i32.add (local.get $at) (i32.const 64)))
        (local.set $n (i32.sub (local.get $n) (i32.const 1)))
        (br $next)))
    (i32.const 0))
  (func (export "policy_victims") (param $bytes i64) (param $max i32) (param $tenant i32) (param $segment i32) (param $flags i32) (result i32)
    (local $h i32) (local $named i32)
    (loop $next
      (local.set $h (i32.add (local.get $h) (i32.const 1)))
      (if (i32.load8_u offset=140000 (local.get $h))
        (then
          (i32.store offset=66560 (i32.shl (local.get $named) (i32.const 2)) (local.get $h))
          (local.set $named (i32.add (local.get $named) (i32.const 1)))))
      (br_if $next (i32.and (i32.lt_u (local.get $h) (i32.const 1023)) (i32.lt_u (local.get $named) (local.get $max)))))
    (local.get $named)))
