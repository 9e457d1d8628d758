package sidebyside

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

const endMark = "<!-- end -->"

// ReplaceSection puts text between the marks of a section, "<!-- make bench: NAME -->" and "<!-- end -->", in a file, or
// at its end.
func ReplaceSection(file, name, text string) error {
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	begin := "<!-- make bench: " + name + " -->\n"
	doc := string(b)
	text = begin + text + endMark + "\n"
	before, rest, found := strings.Cut(doc, begin)
	if !found {
		if doc != "" {
			doc += "\n"
		}
		return os.WriteFile(file, []byte(doc+text), 0o644)
	}
	_, after, found := strings.Cut(rest, endMark+"\n")
	if !found {
		return fmt.Errorf("%s: the section %q has no line %s", file, name, endMark)
	}
	return os.WriteFile(file, []byte(before+text+after), 0o644)
}
