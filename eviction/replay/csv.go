package replay

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// CSVSpec says what the columns of a CSV file mean. Columns are named as in the header line or by number, from 1;
// "" is a column that the file does not have. The zero value takes the names that [Convert] writes.
type CSVSpec struct {
	Time    string  // of the request
	Key     string  // of the block: a number, or text of which a hash is taken
	Size    string  // bytes
	Request string  // rows that follow each other and have the same value here are the blocks of one chain
	Parent  string  // key of the block before; without Request, it joins a row with the one above
	Tenant  string  // a number
	Op      string  // get (or empty), put, remove
	Input   string  // input length of the request in tokens
	Output  string  // output length
	Unit    float64 // ms in one unit of time; 0 is 1
	Comma   rune    // between columns; 0 is ','
	Header  bool    // the first line has names; columns with names imply it
}

// csvHeader is what convert writes and the zero CSVSpec reads.
var csvHeader = []string{"time_ms", "request", "op", "key", "parent", "size", "tenant", "input_length", "output_length"}

func defaultCSV() CSVSpec {
	h := csvHeader
	return CSVSpec{Time: h[0], Request: h[1], Op: h[2], Key: h[3], Parent: h[4], Size: h[5], Tenant: h[6], Input: h[7], Output: h[8], Unit: 1, Comma: ',', Header: true}
}

// ParseCSVSpec reads a list such as "time=1,key=2,size=3,unit=s,sep=;": columns time, key, size, request,
// parent, tenant, op, input and output by name or number, and the settings unit (ns, us, ms, s), sep (one character,
// or tab) and header.
func ParseCSVSpec(text string) (CSVSpec, error) {
	s := CSVSpec{Unit: 1, Comma: ','}
	columns := s.columns()
	for _, part := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		i := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
		switch {
		case name == "header" && !ok:
			s.Header = true
		case !ok || value == "":
			return s, fmt.Errorf("csv columns: %q: want name=column, such as time=1", part)
		case i >= 0:
			*columns[i].at = value
			if _, err := strconv.Atoi(value); err != nil {
				s.Header = true
			}
		case name == "unit":
			units := map[string]float64{"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1000}
			if s.Unit = units[value]; s.Unit == 0 {
				return s, fmt.Errorf("csv columns: unit %q: want ns, us, ms or s", value)
			}
		case name == "sep":
			if value == "tab" {
				value = "\t"
			}
			c, n := utf8.DecodeRuneInString(value)
			if n != len(value) || c == '"' || c == '\r' || c == '\n' || c == utf8.RuneError {
				return s, fmt.Errorf("csv columns: sep %q: want one character, or tab", value)
			}
			s.Comma = c
		default:
			var names []string
			for _, c := range columns {
				names = append(names, c.name)
			}
			return s, fmt.Errorf("csv columns: no column %q; there are: %s, and the settings unit, sep, header", name, strings.Join(names, ", "))
		}
	}
	if s.Time == "" || s.Key == "" {
		return s, fmt.Errorf("csv columns: time and key are needed")
	}
	return s, nil
}

type column struct {
	name string
	at   *string
}

func (s *CSVSpec) columns() []column {
	return []column{{"time", &s.Time}, {"key", &s.Key}, {"size", &s.Size}, {"request", &s.Request}, {"parent", &s.Parent}, {"tenant", &s.Tenant}, {"op", &s.Op}, {"input", &s.Input}, {"output", &s.Output}}
}

// csvReader finds the columns of one row after the other.
type csvReader struct {
	name  string
	in    *csv.Reader
	spec  CSVSpec
	index map[*string]int // of the columns that the file has, from 0
	row   []string
}

func (c *csvReader) errorf(column *string, format string, args ...any) error {
	err := fmt.Errorf(format+": %w", append(args, ErrTrace)...)
	line, col := c.in.FieldPos(c.index[column])
	return fmt.Errorf("%s:%d:%d: %s: column %s: %w", c.name, line, col, CSV, *column, err)
}

func readCSV(name string, r io.Reader, spec CSVSpec, b *Builder) error {
	if spec == (CSVSpec{}) {
		spec = defaultCSV()
	}
	c := &csvReader{name: name, in: csv.NewReader(r), spec: spec, index: map[*string]int{}}
	c.in.Comma, c.in.ReuseRecord, c.in.TrimLeadingSpace = spec.Comma, true, true
	if err := c.header(); err != nil {
		return err
	}
	var q csvRequest
	for {
		row, err := c.in.Read()
		if err == io.EOF {
			return q.add(c, b)
		}
		if err != nil {
			var p *csv.ParseError
			if errors.As(err, &p) {
				return fmt.Errorf("%s:%d:%d: %s: %w: %w", name, p.Line, p.Column, CSV, p.Err, ErrTrace)
			}
			return fmt.Errorf("%s: %s: %w", name, CSV, err)
		}
		c.row = row
		if err := q.row(c, b); err != nil {
			return err
		}
	}
}

func (c *csvReader) header() error {
	var names []string
	if c.spec.Header {
		row, err := c.in.Read()
		if err != nil && err != io.EOF {
			return fmt.Errorf("%s:1: %s: %w: %w", c.name, CSV, err, ErrTrace)
		}
		names = slices.Clone(row)
	}
	for _, col := range c.spec.columns() {
		if *col.at == "" {
			continue
		}
		if n, err := strconv.Atoi(*col.at); err == nil {
			if n < 1 {
				return fmt.Errorf("%s: %s: column %d for %s: columns count from 1: %w", c.name, CSV, n, col.name, ErrTrace)
			}
			c.index[col.at] = n - 1
			continue
		}
		i := slices.Index(names, *col.at)
		if i < 0 {
			return fmt.Errorf("%s:1: %s: no column %q for %s in the header (%s): name columns by header or number: %w", c.name, CSV, *col.at, col.name, strings.Join(names, ", "), ErrTrace)
		}
		c.index[col.at] = i
	}
	return nil
}

// text returns a column, "" if the file has none.
func (c *csvReader) text(col *string) (string, error) {
	i, ok := c.index[col]
	if !ok {
		return "", nil
	}
	if i >= len(c.row) {
		line, _ := c.in.FieldPos(0)
		return "", fmt.Errorf("%s:%d: %s: %d columns, want at least %d: %w", c.name, line, CSV, len(c.row), i+1, ErrTrace)
	}
	return strings.TrimSpace(c.row[i]), nil
}

// number returns a column of whole numbers, 0 if it is empty.
func (c *csvReader) number(col *string, bits int) (uint64, error) {
	text, err := c.text(col)
	if err != nil || text == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return 0, c.errorf(col, "%q: want a whole number of %d bits, not negative", text, bits)
	}
	return n, nil
}

func (c *csvReader) key(col *string) (uint64, bool, error) {
	text, err := c.text(col)
	if err != nil || text == "" {
		return 0, false, err
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n, true, nil
	}
	return xxhash.Sum64String(text), true, nil
}

// csvRequest collects the rows of one request.
type csvRequest struct {
	q     Request
	id    string // of the column request
	line  int
	names []uint64
	sizes []uint64
}

func (q *csvRequest) row(c *csvReader, b *Builder) error {
	s := &c.spec
	key, ok, err := c.key(&s.Key)
	if err == nil && !ok {
		err = c.errorf(&s.Key, "it is empty: want a key")
	}
	if err != nil {
		return err
	}
	parent, hasParent, err := c.key(&s.Parent)
	if err != nil {
		return err
	}
	id, err := c.text(&s.Request)
	if err != nil {
		return err
	}
	size, err := c.number(&s.Size, 63)
	if err != nil {
		return err
	}
	at, err := c.request()
	if err != nil {
		return err
	}
	joined := len(q.names) > 0 && at.TimeMS == q.q.TimeMS && at.Kind == q.q.Kind
	if s.Request != "" {
		joined = joined && id == q.id
	} else {
		joined = joined && hasParent && parent == q.names[len(q.names)-1]
	}
	if !joined {
		if err := q.add(c, b); err != nil {
			return err
		}
		q.q, q.id = at, id
		q.line, _ = c.in.FieldPos(0)
	}
	q.names, q.sizes = append(q.names, key), append(q.sizes, size)
	return nil
}

// request reads the columns that are the same for all blocks of a request.
func (c *csvReader) request() (q Request, err error) {
	s := &c.spec
	text, err := c.text(&s.Time)
	if err != nil {
		return q, err
	}
	if n, err := strconv.ParseUint(text, 10, 53); err == nil && s.Unit == 1 {
		q.TimeMS = n
	} else {
		t, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return q, c.errorf(&s.Time, "%q: want a number", text)
		}
		unit := s.Unit
		if unit == 0 {
			unit = 1
		}
		if q.TimeMS, err = milliseconds(t, unit); err != nil {
			return q, c.errorf(&s.Time, "%v", err)
		}
	}
	tenant, err := c.number(&s.Tenant, 32)
	if err != nil {
		return q, err
	}
	input, err := c.number(&s.Input, 32)
	if err != nil {
		return q, err
	}
	output, err := c.number(&s.Output, 32)
	if err != nil {
		return q, err
	}
	q.Tenant, q.Tokens, q.Output = uint32(tenant), uint32(input), uint32(output)
	op, err := c.text(&s.Op)
	if err != nil {
		return q, err
	}
	switch op {
	case "", "get":
	case "put":
		q.Kind = Stored
	case "remove":
		q.Kind = Removed
	default:
		return q, c.errorf(&s.Op, "%q: want get, put or remove", op)
	}
	return q, nil
}

func (q *csvRequest) add(c *csvReader, b *Builder) error {
	if len(q.names) == 0 {
		return nil
	}
	sizes := q.sizes
	if c.spec.Size == "" {
		sizes = nil
	}
	if err := b.AddRequest(q.q, q.names, sizes); err != nil {
		return fmt.Errorf("%s:%d: %s: %w", c.name, q.line, CSV, err)
	}
	q.names, q.sizes = q.names[:0], q.sizes[:0]
	return nil
}

// writeCSV writes one row a block.
func writeCSV(w io.Writer, t *Trace) error {
	out := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintln(out, strings.Join(csvHeader, ","))
	ops := map[Kind]string{Wanted: "get", Stored: "put", Removed: "remove"}
	for i := range t.Requests {
		r := &t.Requests[i]
		parent := ""
		for _, id := range t.Blocks(i) {
			size := ""
			if t.Sized() {
				size = strconv.FormatUint(t.Size(id), 10)
			}
			key := strconv.FormatUint(t.names[id], 10)
			fmt.Fprintf(out, "%d,%d,%s,%s,%s,%s,%d,%d,%d\n", r.TimeMS, i, ops[r.Kind], key, parent, size, r.Tenant, r.Tokens, r.Output)
			parent = key
		}
	}
	return out.Flush()
}
