package jsoncpp

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestValid(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"object", `{"a":[1,2.5e3,"x",true,false,null],"b":{}}`, nil},
		{"scalar root", `7`, nil},
		{"white space", " \t\r\n[ ]\n", nil},
		{"byte order mark", "\xef\xbb\xbf{}", nil},
		{"block comment", `/* a */ {"a" /* b */ : 1}`, nil},
		{"line comment", "{// x\n}", nil},
		{"trailing comma", `{"a":[1,],}`, nil},
		{"text after the root", `{} rubbish`, nil},
		{"raw control character in a string", "\"a\nb\"", nil},
		{"leading zeros", `007`, nil},
		{"empty", "", ErrSyntax},
		{"only a newline", "\n", ErrSyntax},
		{"cut object", `{bad`, ErrSyntax},
		{"cut string", `"abc`, ErrSyntax},
		{"cut escape", `"abc\`, ErrSyntax},
		{"bad escape", `"\x"`, ErrSyntax},
		{"bad unicode escape", `"\u12g4"`, ErrSyntax},
		{"lone high surrogate", `"\ud83dx"`, ErrSyntax},
		{"number as key", `{1:2}`, ErrSyntax},
		{"missing colon", `{"a" 1}`, ErrSyntax},
		{"missing comma", `[1 2]`, ErrSyntax},
		{"two commas", `[1,,2]`, ErrSyntax},
		{"comma first", `[,1]`, ErrSyntax},
		{"wrong bracket", `[1}`, ErrSyntax},
		{"word", `nul`, ErrSyntax},
		{"NaN", `NaN`, ErrSyntax},
		{"minus alone", `-`, ErrSyntax},
		{"exponent alone", `1e`, ErrSyntax},
		{"open comment", `/* {}`, ErrSyntax},
		{"lone slash", `/`, ErrSyntax},
		{"type byte first", "\x04{}", ErrSyntax},
		{"deepest", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), nil},
		{"one too deep", strings.Repeat("[", 1001) + strings.Repeat("]", 1001), ErrDepth},
		{"scalar one too deep", strings.Repeat("[", 1000) + "1" + strings.Repeat("]", 1000), ErrDepth},
		{"objects too deep", strings.Repeat(`{"a":`, 5000), ErrDepth},
		{"a million brackets", strings.Repeat("[", 1<<20), ErrDepth},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := Valid([]byte(c.text)); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestAsUint(t *testing.T) {
	for _, c := range []struct {
		text string
		want uint64
		err  bool
	}{
		{"0", 0, false},
		{"17592186044416", 17592186044416, false},
		{"17592186044416.0", 17592186044416, false},
		{"1.7592186044416e13", 17592186044416, false},
		{"1.7592186044416E+13", 17592186044416, false},
		{"9007199254740993", 9007199254740993, false},
		{"9007199254740993.000", 9007199254740993, false},
		{"9223372036854779904", 9223372036854779904, false},
		{"18446744073709551615", math.MaxUint64, false},
		{"18446744073709551616", 0, true},
		{"1844674407370955161500e-2", math.MaxUint64, false},
		{"1e19", 1e19, false},
		{"1e20", 0, true},
		{"0e999999999999", 0, false},
		{"1e-1", 0, true},
		{"10e-1", 1, false},
		{"1.5", 0, true},
		{"-1", 0, true},
		{"-0", 0, false},
		{"null", 0, false},
		{"true", 1, false},
		{"false", 0, false},
		{`"5"`, 0, true},
		{"[]", 0, true},
		{"{}", 0, true},
	} {
		got, err := NewReader([]byte(c.text)).AsUint(math.MaxUint64)
		if (err != nil) != c.err || got != c.want {
			t.Errorf("%s: got %d, %v", c.text, got, err)
		}
		if err != nil && !errors.Is(err, ErrType) {
			t.Errorf("%s: %v does not wrap ErrType", c.text, err)
		}
	}
}

func TestAsInt32(t *testing.T) {
	for text, want := range map[string]int32{"-1": -1, "70000": 70000, "-2147483648": math.MinInt32, "2147483647": math.MaxInt32, "2.0": 2, "null": 0} {
		if got, err := NewReader([]byte(text)).AsInt32(); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"2147483648", "-2147483649", `"1"`, "1.25"} {
		if _, err := NewReader([]byte(text)).AsInt32(); !errors.Is(err, ErrType) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestAsString(t *testing.T) {
	for text, want := range map[string]string{`"a"`: "a", `null`: "", `5`: "5", `-1.5e3`: "-1.5e3", `true`: "true",
		`"\"\\\/\b\f\n\r\té中😀"`: "\"\\/\b\f\n\r\té中😀"} {
		if got, err := NewReader([]byte(text)).AsString(); err != nil || got != want {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"[]", "{}"} {
		if _, err := NewReader([]byte(text)).AsString(); !errors.Is(err, ErrType) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// The text is the one the wheel sent in a notify (see the handshake package's golden frames).
func TestAppendString(t *testing.T) {
	got := string(AppendString(nil, "hé 中 😀 \"q\" \\ / \n\t\x01 <&>\x7f\xff"))
	want := `"h\u00e9 \u4e2d \ud83d\ude00 \"q\" \\ / \n\t\u0001 <&>` + "\x7f" + `\ufffd"`
	if got != want {
		t.Fatalf("got %s\nwant %s", got, want)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5e3,"x\ud83d\ude00",true,null],"b":{"c":-0}} /* x */`))
	f.Add([]byte(`[1,]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Valid(b)
		if err == nil {
			if raw, err := NewReader(b).Raw(); err != nil || len(raw) == 0 {
				t.Fatalf("Raw of valid text: %q, %v", raw, err)
			}
		} else if json.Valid(b) && !errors.Is(err, ErrDepth) && !strings.Contains(err.Error(), "surrogate") {
			t.Fatalf("standard JSON refused: %v", err)
		}
		_, _ = NewReader(b).AsUint(math.MaxUint64)
		_, _ = NewReader(b).AsInt32()
		if s, err := NewReader(b).AsString(); err == nil {
			enc := AppendString(nil, s)
			back, err := NewReader(enc).AsString()
			if err != nil || back != strings.ToValidUTF8(s, "�") && back != toValid(s) {
				t.Fatalf("%q was written as %s and read as %q, %v", s, enc, back, err)
			}
		}
	})
}

func toValid(s string) string { return string([]rune(s)) }
