package meter

import (
	"errors"
	"fmt"
	"testing"
)

func TestErrorNamesThePlace(t *testing.T) {
	err := error(&Error{Rule: RuleTailCall, Section: "code", Function: 7, Offset: 0x1f, Err: fmt.Errorf("return_call: %w", ErrRefused)})
	const want = "meter: code section: function 7: offset 0x1f: return_call: refused module (tailCall)"
	if got := err.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(err, ErrRefused) || errors.Is(err, ErrLimit) {
		t.Errorf("%v is of the wrong class", err)
	}
	err = &Error{Rule: RuleFormat, Section: "module", Function: -1, Offset: -1, Err: ErrMalformed}
	if got := err.Error(); got != "meter: module section: malformed module (format)" {
		t.Errorf("%q", got)
	}
}
