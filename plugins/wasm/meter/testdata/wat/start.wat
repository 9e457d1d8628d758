;; A start function, a name section, a memory that the data fills.
(module $started
  (memory (export "memory") 1)
  (global $g (export "g") (mut i64) (i64.const 0))
  (data (i32.const 8) "hello")
  (func $begin (local $i i32)
    (loop $l
      (i32.store8 (i32.add (local.get $i) (i32.const 100)) (i32.load8_u (i32.add (local.get $i) (i32.const 8))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 5))))
    (global.set $g (i64.load8_u (i32.const 104))))
  (func $get (export "get") (param $at i32) (result i64) (i64.add (global.get $g) (i64.load8_u (i32.and (local.get $at) (i32.const 255)))))
  (start $begin)
)
