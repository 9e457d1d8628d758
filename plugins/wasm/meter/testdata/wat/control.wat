;; Blocks, loops and branches of every kind. Arguments are masked, so that every call ends.
(module
  (type $pair (func (param i32 i32) (result i32 i32)))
  (func (export "nested") (param $n i32) (result i32) (local $i i32) (local $j i32) (local $s i32)
    (local.set $i (i32.and (local.get $n) (i32.const 31)))
    (loop $outer
      (local.set $j (local.get $i))
      (loop $inner
        (local.set $s (i32.add (local.get $s) (i32.mul (local.get $i) (local.get $j))))
        (br_if $inner (i32.gt_s (local.tee $j (i32.sub (local.get $j) (i32.const 1))) (i32.const 0))))
      (br_if $outer (i32.gt_s (local.tee $i (i32.sub (local.get $i) (i32.const 1))) (i32.const 0))))
    (local.get $s))
  ;; The inner loop continues the outer one, past its own end.
  (func (export "leap") (param $n i32) (result i32) (local $i i32) (local $s i32)
    (loop $outer
      (local.set $s (i32.add (local.get $s) (i32.const 3)))
      (loop $inner
        (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if $outer (i32.lt_u (local.get $i) (i32.and (local.get $n) (i32.const 15))))
        (br_if $inner (i32.lt_u (local.get $i) (i32.and (local.get $n) (i32.const 63)))))
      (local.set $s (i32.add (local.get $s) (i32.const 100))))
    (local.get $s))
  ;; A loop with two parameters: a branch passes them on.
  (func (export "parameters") (param $n i32) (result i32) (local $a i32) (local $b i32)
    (i32.and (local.get $n) (i32.const 127))
    (i32.const 1)
    (loop $l (type $pair)
      (local.set $b)
      (local.set $a)
      (i32.sub (local.get $a) (i32.const 1))
      (i32.mul (local.get $b) (i32.const 3))
      (br_if $l (i32.gt_s (local.get $a) (i32.const 0))))
    (i32.xor))
  ;; A loop with a result, left through an outer block, entered again from within an if.
  (func (export "down") (param $n i64) (result i64)
    (local.set $n (i64.and (local.get $n) (i64.const 255)))
    (i64.const 1)
    (loop $l (param i64) (result i64)
      (i64.mul (i64.const 7))
      (block $done (param i64) (result i64)
        (br_if $done (i64.lt_s (local.get $n) (i64.const 5)))
        (i64.add (local.get $n)))
      (local.set $n (i64.sub (local.get $n) (i64.const 3)))
      (if (param i64) (result i64) (i64.gt_s (local.get $n) (i64.const 0))
        (then (br $l))
        (else (i64.xor (i64.const 85))))))
  (func (export "table") (param $n i32) (param $k i32) (result i32) (local $s i32)
    (local.set $k (i32.and (local.get $k) (i32.const 15)))
    (loop $again
      (local.set $n (i32.shr_u (local.get $n) (i32.const 1)))
      (local.set $s (i32.mul (local.get $s) (i32.const 2)))
      (block $c (block $b (block $a
        (br_table $a $b $c $again $a (select (i32.and (local.get $n) (i32.const 7)) (i32.const 1) (local.get $n))))
        (local.set $s (i32.add (local.get $s) (i32.const 1))))
        (local.set $s (i32.add (local.get $s) (i32.const 10))))
      (local.set $s (i32.add (local.get $s) (i32.const 100)))
      (br_if $again (i32.gt_s (local.tee $k (i32.sub (local.get $k) (i32.const 1))) (i32.const 0))))
    (local.get $s))
  (func (export "arms") (param $n i32) (result i32)
    (if (result i32) (i32.and (local.get $n) (i32.const 1))
      (then (if (result i32) (i32.and (local.get $n) (i32.const 2))
        (then (nop) (nop) (i32.const 3))
        (else (i32.const 1))))
      (else (return (i32.const 1000)))))
  ;; Code that cannot be reached, with everything that is charged in it.
  (memory 1 2)
  (table 4 funcref)
  (elem $e func $one)
  (data $d "abc")
  (func $one (result i32) (i32.const 1))
  (func (export "dead") (param $n i32) (result i32)
    (block $out (result i32)
      (br $out (i32.add (local.get $n) (i32.const 1)))
      (loop $l (param i32) (result i32) (br $l))
      unreachable
      memory.fill
      memory.copy
      memory.init $d
      table.fill 0
      table.copy 0 0
      table.init 0 $e
      memory.grow
      (loop (br 0))))
  (func (export "empty"))
  (func (export "straight") (result i32) (i32.add (i32.const 1) (i32.mul (i32.const 2) (i32.const 3))))
  (func (export "spin") (loop (br 0)))
  (func (export "traps") (param $n i32) (result i32) (i32.div_s (i32.const 7) (local.get $n)))
)
