package meter

import (
	"errors"
	"fmt"
)

// Rewrite meters a module. See the package comment for what the result needs from its host.
func Rewrite(code []byte, o Options) (*Module, error) {
	limits := o.Limits.orDefault()
	switch {
	case o.Validate == nil:
		return nil, errors.New("meter: Options.Validate is nil: a module that no engine has validated cannot be metered")
	case o.Budget < 0 || o.Budget > MaxBudget:
		return nil, fmt.Errorf("meter: budget %d is outside 0..%d", o.Budget, int64(MaxBudget))
	}
	d := decoder{reader: reader{b: code, end: len(code), section: "module", function: -1}, limits: &limits}
	d.decode()
	if d.err != nil {
		return nil, d.err
	}
	e := encoder{out: make([]byte, 0, len(code)+len(code)/2)}
	e.beforeCode(&d.m, o.Budget)
	if err := e.code(&d); err != nil {
		return nil, err
	}
	e.afterCode(&d.m)
	d.facts.Functions, d.facts.Start = len(d.m.functions), d.m.start >= 0
	if err := o.Validate(code); err != nil {
		return nil, &Error{Rule: RuleValid, Function: -1, Offset: -1, Err: fmt.Errorf("%w: %w", ErrMalformed, err)}
	}
	return &Module{Code: e.out, Facts: d.facts}, nil
}

// code writes the code section, function by function.
func (e *encoder) code(d *decoder) error {
	var b body
	all := appendU32(nil, uint32(len(d.m.bodies)+1))
	for i, s := range d.m.bodies {
		index := len(d.m.importedFunctions) + i
		r := reader{b: d.b, pos: s.from, end: s.to, section: sectionNames[secCode], function: index}
		b.function(&r, &d.m, len(d.m.types[d.m.functions[i]].params), d.limits)
		if r.err != nil {
			return r.err
		}
		d.facts.Instructions += b.instructions
		all = e.appendFunction(all, &b)
		if n := len(e.scratch); n > d.limits.MeteredBody {
			r.fail(RuleLimit, ErrLimit, "%d bytes of code with the charges, at most %d are allowed", n, d.limits.MeteredBody)
			return r.err
		}
	}
	all = e.appendRefill(all, d.m.importedMemories+len(d.m.memories) > 0)
	e.out = append(e.out, secCode)
	e.out = appendU32(e.out, uint32(len(all)))
	e.out = append(e.out, all...)
	return nil
}

func (l Limits) orDefault() Limits {
	for _, f := range []struct{ value, standard *int }{
		{&l.Module, &DefaultLimits.Module}, {&l.Types, &DefaultLimits.Types}, {&l.Params, &DefaultLimits.Params},
		{&l.Results, &DefaultLimits.Results}, {&l.Imports, &DefaultLimits.Imports}, {&l.Functions, &DefaultLimits.Functions},
		{&l.Tables, &DefaultLimits.Tables}, {&l.TableSize, &DefaultLimits.TableSize}, {&l.Globals, &DefaultLimits.Globals},
		{&l.Exports, &DefaultLimits.Exports}, {&l.Elements, &DefaultLimits.Elements}, {&l.Data, &DefaultLimits.Data},
		{&l.NameLength, &DefaultLimits.NameLength}, {&l.Body, &DefaultLimits.Body}, {&l.MeteredBody, &DefaultLimits.MeteredBody},
		{&l.Locals, &DefaultLimits.Locals}, {&l.Nesting, &DefaultLimits.Nesting},
	} {
		if *f.value == 0 {
			*f.value = *f.standard
		}
	}
	return l
}
