package abi

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tables are the tables of ABI.md: their lines' cells by the header line, without back quotes.
func tables(t *testing.T) map[string][][]string {
	t.Helper()
	text, err := os.ReadFile("ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][][]string{}
	var head string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(strings.ReplaceAll(line, "`", ""))
		switch {
		case !strings.HasPrefix(line, "|"):
			head = ""
		case head == "":
			for head = line; all[head] != nil; head += "'" { // record and header have the same columns
			}
			all[head] = [][]string{}
		case !strings.HasPrefix(line, "|--"):
			var cells []string
			for _, c := range strings.Split(strings.Trim(line, "|"), "|") {
				cells = append(cells, strings.TrimSpace(c))
			}
			all[head] = append(all[head], cells)
		}
	}
	return all
}

// Every number of the page is that of policy.h, which the other tests compare with the code, and none is missing.
func TestPageHasEveryNumber(t *testing.T) {
	all := tables(t)
	var found []string
	for head, prefix := range map[string]string{
		"| kind | number | |": "MC_", "| flag | bit | |": "MC_FLAG_", "| code of REMOVE | number | |": "MC_",
		"| code of REJECT | number | |": "MC_REJECT_", "| buffer | number | align | holds |": "MC_BUFFER_", "| need flag | bit | |": "MC_NEED_",
		"| load result | number | |": "MC_LOAD_", "| level | number |": "MC_LOG_",
	} {
		lines := all[head]
		if len(lines) == 0 {
			t.Errorf("no table %q", head)
		}
		for _, l := range lines {
			name := prefix + strings.ToUpper(l[0])
			found = append(found, name)
			if want, known := numbers[name]; !known || l[1] != strconv.FormatInt(want, 10) {
				t.Errorf("table %q: %s is %s; %s = %d in policy.h (known: %v)", head, l[0], l[1], name, want, known)
			}
		}
	}
	for name := range numbers {
		switch name {
		case "MC_ABI_MINOR", "MC_RECORD_SIZE", "MC_HEADER_SIZE", "MC_MAX_STATE", "MC_MAX_CANDIDATES", "MC_ANY_TENANT", "MC_ANY_SEGMENT":
		default:
			if !slices.Contains(found, name) {
				t.Errorf("%s is in no table", name)
			}
		}
	}
	for _, l := range all["| buffer | number | align | holds |"] {
		n, _ := strconv.Atoi(l[1])
		if b := Buffer(n); b.String() != l[0] || strconv.Itoa(int(b.Align())) != l[2] {
			t.Errorf("buffer %s: %v, aligned to %d", l[0], b, b.Align())
		}
	}
}

func TestPageHasEveryField(t *testing.T) {
	const head = "| offset | type | field | meaning |"
	for h, fields := range map[string][]field{head: headerFields, head + "'": recordFields} {
		var want, got []string
		for _, f := range fields {
			want = append(want, fmt.Sprint(f.off, " ", f.typ, " ", f.c))
		}
		for _, l := range tables(t)[h] {
			got = append(got, strings.Join(l[:3], " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("the page says\n%v, the code\n%v", got, want)
		}
	}
}

func TestPageHasEveryExport(t *testing.T) {
	short := strings.NewReplacer("int32_t", "i32", "int64_t", "i64", "void *(*)", "i32 (*)", "(void)", "()")
	want := map[string]string{MemoryExport: "memory", Initialize: "()"}
	for name, c := range functions {
		result, params, _ := strings.Cut(short.Replace(c), " (*)")
		want[name] = params + " -> " + result
	}
	got := map[string]string{}
	for _, l := range tables(t)["| export | type | |"] {
		got[l[0]] = l[1]
	}
	for name, typ := range want {
		if got[name] != typ {
			t.Errorf("%s: the page says %q, the code %q", name, got[name], typ)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("the page has %s, the code has not", name)
	}
	if l := tables(t)["| import | type | |"]; len(l) != 1 || l[0][0] != ImportModule+"."+ImportLog || l[0][1] != "(i32, i32, i32)" {
		t.Errorf("imports: %v", l)
	}
}
