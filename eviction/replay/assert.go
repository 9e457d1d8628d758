package replay

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Assertion is a claim about results, such as
//
//	prefix(lru,5000) >= 0.111
//	prefix(adaptive,5%) >= prefix(lru,5%) - 0.003
//	block(arc:order=head,1000) == 0.0529 +- 0.0005
//
// Metrics are prefix, block, token, byte, gap, evictions, regret, refused, no_space, traps, strikes, helped, alarms,
// ns (nanoseconds an access) and bytes (of the policy, a key). Numbers may be percentages: 11.1%.
type Assertion struct {
	text        string
	left, right term
	op          string
	tolerance   float64
}

// term is a metric of a run, plus a number.
type term struct {
	metric, policy, size string
	plus                 float64
}

var metrics = map[string]func(*Row) float64{
	"prefix":    func(r *Row) float64 { return r.PrefixHit },
	"block":     func(r *Row) float64 { return r.BlockHit },
	"token":     func(r *Row) float64 { return r.TokenHit },
	"byte":      func(r *Row) float64 { return r.ByteHit },
	"gap":       func(r *Row) float64 { return r.Gap },
	"evictions": func(r *Row) float64 { return float64(r.Evictions) },
	"regret":    func(r *Row) float64 { return float64(r.Regret) },
	"refused":   func(r *Row) float64 { return float64(r.Refused) },
	"no_space":  func(r *Row) float64 { return float64(r.NoSpace) },
	"traps":     func(r *Row) float64 { return float64(r.Faults) },
	"strikes":   func(r *Row) float64 { return float64(r.Strikes) },
	"helped":    func(r *Row) float64 { return float64(r.Helped) },
	"alarms":    func(r *Row) float64 { return float64(r.Alarms) },
	"ns":        func(r *Row) float64 { return r.NsPerAccess },
	"bytes":     func(r *Row) float64 { return r.BytesPerKey },
}

const metricList = "prefix, block, token, byte, gap, evictions, regret, refused, no_space, traps, strikes, helped, alarms, ns, bytes"

var (
	comparison = regexp.MustCompile(`^(.*?[^<>=!])(>=|<=|==|!=|>|<)([^<>=].*)$`)
	callForm   = regexp.MustCompile(`^([a-z_]+)\s*\(\s*(.+)\s*,\s*([^,()\s]+)\s*\)\s*(?:([+-])\s*([0-9.eE%-]+))?$`)
)

// ParseAssertion reads one claim.
func ParseAssertion(text string) (Assertion, error) {
	a := Assertion{text: strings.TrimSpace(text)}
	bad := func(err error) (Assertion, error) {
		return a, fmt.Errorf("assertion %q: %w", a.text, err)
	}
	// The operator stands behind the first ")", because policies have "=" in their names.
	end := strings.IndexByte(a.text, ')')
	m := comparison.FindStringSubmatch(a.text[max(0, end):])
	if end < 0 || m == nil {
		return bad(fmt.Errorf("want METRIC(POLICY,SIZE) >= NUMBER, such as prefix(lru,5000) >= 0.111"))
	}
	left, right := a.text[:end]+m[1], m[3]
	a.op = m[2]
	if r, tolerance, ok := strings.Cut(right, "+-"); ok {
		t, err := parseNumber(tolerance)
		if err != nil || t < 0 {
			return bad(fmt.Errorf("tolerance %q: want a number", strings.TrimSpace(tolerance)))
		}
		right, a.tolerance = r, t
	}
	if a.tolerance > 0 && a.op != "==" && a.op != "!=" {
		return bad(fmt.Errorf("+- goes with == and != only"))
	}
	var err error
	if a.left, err = parseTerm(left); err != nil {
		return bad(err)
	}
	if a.right, err = parseTerm(right); err != nil {
		return bad(err)
	}
	return a, nil
}

func parseTerm(text string) (term, error) {
	text = strings.TrimSpace(text)
	if n, err := parseNumber(text); err == nil {
		return term{plus: n}, nil
	}
	m := callForm.FindStringSubmatch(text)
	if m == nil {
		return term{}, fmt.Errorf("%q: want a number or METRIC(POLICY,SIZE)", text)
	}
	t := term{metric: m[1], policy: strings.TrimSpace(m[2]), size: m[3]}
	if metrics[t.metric] == nil {
		return term{}, fmt.Errorf("no metric %q; there are: %s", t.metric, metricList)
	}
	if m[4] != "" {
		n, err := parseNumber(m[5])
		if err != nil {
			return term{}, fmt.Errorf("%q: want a number", m[5])
		}
		if m[4] == "-" {
			n = -n
		}
		t.plus = n
	}
	return t, nil
}

func parseNumber(text string) (float64, error) {
	text, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = strconv.ErrRange
	}
	if percent {
		n /= 100
	}
	return n, err
}

func (t *term) value(rows []Row) (float64, error) {
	if t.metric == "" {
		return t.plus, nil
	}
	r, err := Find(rows, t.policy, t.size)
	if err != nil {
		return 0, err
	}
	return metrics[t.metric](r) + t.plus, nil
}

// Check tells whether the claim holds; seen says what was found. An error is a claim about a run that was not made.
func (a *Assertion) Check(rows []Row) (ok bool, seen string, err error) {
	l, err := a.left.value(rows)
	if err != nil {
		return false, "", fmt.Errorf("assertion %q: %w", a.text, err)
	}
	r, err := a.right.value(rows)
	if err != nil {
		return false, "", fmt.Errorf("assertion %q: %w", a.text, err)
	}
	const rounding = 1e-12 // decimal fractions
	near := math.Abs(l-r) <= a.tolerance+rounding
	switch a.op {
	case ">=":
		ok = l >= r-rounding
	case "<=":
		ok = l <= r+rounding
	case ">":
		ok = l > r
	case "<":
		ok = l < r
	case "==":
		ok = near
	case "!=":
		ok = !near
	}
	return ok, fmt.Sprintf("%s: left side %s, right side %s", a.text, short(l), short(r)), nil
}

// Runs are the policies and sizes that the claim is about.
func (a *Assertion) Runs() (policies, sizes []string) {
	for _, t := range []term{a.left, a.right} {
		if t.metric != "" {
			policies, sizes = append(policies, t.policy), append(sizes, t.size)
		}
	}
	return policies, sizes
}

// String is the claim as it was written.
func (a *Assertion) String() string { return a.text }

func short(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }
