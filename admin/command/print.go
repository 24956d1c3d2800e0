package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// show prints value as JSON with --json, else as tables. A list of objects becomes a table. An object becomes
// a line for each field, and a table for each list in the object. For an empty list, show prints c.emptyText.
// show redacts API keys, which the data may contain, except in a command that has created an API key.
func (c *invocation) show(value any) error {
	indent := ""
	if c.json {
		indent = "  "
	}
	output, err := c.encode(value, indent)
	if err == nil && !c.json {
		p := printer{hidden: strings.Fields(c.jsonOnly)}
		p.add(json.RawMessage(output), c.emptyText)
		output = p.String()
	}
	if err != nil {
		return err
	}
	return c.printf("%s", output)
}

func (c *invocation) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(c.cmd.OutOrStdout(), format, args...)
	return err
}

// encode returns value as JSON that ends with a newline.
func (c *invocation) encode(value any, indent string) (string, error) {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	if c.printsKey {
		return encoded.String(), err
	}
	return redactKeys(encoded.String()), err
}

// stream prints rows as more lines of a table, or with --json as lines of JSON.
func stream[T any](c *invocation, p *printer, rows ...T) error {
	var lines []json.RawMessage
	for _, row := range rows {
		line, err := c.encode(row, "")
		if err != nil {
			return err
		}
		lines = append(lines, json.RawMessage(line))
	}
	if !c.json {
		p.table(lines)
		lines = []json.RawMessage{json.RawMessage(p.String())}
		p.Reset()
	}
	return c.printf("%s", slices.Concat(lines...))
}

type field struct {
	name  string
	value json.RawMessage
}

// fieldsOf returns the fields of a JSON object in their order in the JSON text.
func fieldsOf(object json.RawMessage) (fields []field) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // the server or an encoder wrote the object, so it is valid
	for d.More() {
		name, _ := d.Token()
		f := field{name: fmt.Sprint(name)}
		if d.Decode(&f.value) != nil {
			break
		}
		fields = append(fields, f)
	}
	return fields
}

// listOf returns the elements of a JSON list, and whether value is a list.
func listOf(value json.RawMessage) (list []json.RawMessage, isList bool) {
	isList = value[0] == '[' && json.Unmarshal(value, &list) == nil
	return list, isList
}

// printer formats JSON values as tables for people.
type printer struct {
	strings.Builder
	hidden []string // names of columns to omit
	// If continues is set, further calls of table add their lines to the table of the first call. Otherwise
	// each call adds a table of its own.
	continues  bool
	hasHeaders bool // whether a call of table has written the headers, which later calls omit
}

// add appends value, or emptyText if value is an empty list.
func (p *printer) add(value json.RawMessage, emptyText string) {
	if list, isList := listOf(value); isList {
		if len(list) == 0 {
			p.WriteString(emptyText + "\n")
		}
		p.table(list)
		return
	}
	var fieldLines [][]string
	fields := fieldsOf(value)
	for _, f := range fields {
		list, isList := listOf(f.value)
		if string(f.value) != "null" && (!isList || !isTable(list)) && !slices.Contains(p.hidden, f.name) {
			fieldLines = append(fieldLines, []string{label(f.name), cell(f.value)})
		}
	}
	p.align(fieldLines, 0)
	for _, f := range fields {
		if list, isList := listOf(f.value); isList && len(list) > 0 && isTable(list) {
			p.WriteString("\n" + label(f.name) + "\n")
			p.table(list)
		}
	}
}

// isTable reports whether a list gets lines of its own, instead of a cell, because its first element is an
// object or a sentence, or because it has more than three names. The other elements have the type of the
// first one. An empty list counts as a table, so that it gets no cell.
func isTable(list []json.RawMessage) bool {
	return len(list) == 0 || list[0][0] == '{' ||
		list[0][0] == '"' && (len(list) > 3 || bytes.Contains(list[0], []byte(" ")))
}

// table appends a table of objects that have the same fields, or a list of sentences. A column that is empty
// in all rows is left out, unless p.continues is set, because a later call may then fill the column.
func (p *printer) table(list []json.RawMessage) {
	var rows [][]field
	for _, item := range list {
		if item[0] == '{' {
			rows = append(rows, fieldsOf(item))
		} else {
			p.WriteString(cell(item) + "\n")
		}
	}
	if len(rows) == 0 {
		return
	}
	var columns []int
	headers := []string{}
	for i, f := range rows[0] {
		hasCell := func(r []field) bool { return hasValue(r[i].value) }
		if !slices.Contains(p.hidden, f.name) && (p.continues || slices.ContainsFunc(rows, hasCell)) {
			columns = append(columns, i)
			headers = append(headers, strings.ToUpper(label(f.name)))
		}
	}
	var lines [][]string
	if !p.hasHeaders {
		lines = append(lines, headers)
	}
	for _, row := range rows {
		line := []string{}
		for _, i := range columns {
			line = append(line, cell(row[i].value))
		}
		lines = append(lines, line)
	}
	width := 0
	if p.continues {
		p.hasHeaders, width = true, 10 // the columns of all calls should align
	}
	p.align(lines, width)
}

// hasValue reports whether value is worth a column: neither null nor an empty list.
func hasValue(value json.RawMessage) bool { return string(value) != "null" && string(value) != "[]" }

// align appends lines of cells with aligned columns, each at least width characters wide.
func (p *printer) align(lines [][]string, width int) {
	w := tabwriter.NewWriter(&p.Builder, width, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // writes to a Builder, which never fails
}

func label(name string) string { return strings.ReplaceAll(name, "_", " ") }

// noValue is the cell of a missing value.
const noValue = "-"

// serverTime matches a time in UTC as the server writes it in JSON.
var serverTime = regexp.MustCompile(`^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(\+00:00|Z)$`)

// serverRange matches a range of times as the server writes it.
var serverRange = regexp.MustCompile(
	`^[[(](?:"(\d{4}-\d\d-\d\d) ([\d:.]+)\+00")?,(?:"(\d{4}-\d\d-\d\d) ([\d:.]+)\+00")?\)$`)

// sixDecimals matches an amount of money. Of its decimals, people read two or more.
var sixDecimals = regexp.MustCompile(`^(-?\d+\.\d\d\d*?)0+$`)

// cell formats a JSON value for a cell.
func cell(value json.RawMessage) string {
	switch value[0] {
	case 'n':
		return noValue
	case 't':
		return "yes"
	case 'f':
		return "no"
	case '"':
		var s string
		_ = json.Unmarshal(value, &s)
		if s == "infinity" { // of a timestamptz
			return "never"
		}
		if r := serverRange.FindStringSubmatch(s); r != nil && s != "(,)" { // as valid= reads it
			s = strings.ReplaceAll(r[1]+"T"+r[2]+"Z.."+r[3]+"T"+r[4]+"Z", "TZ", "")
		}
		return redactAndQuote(serverTime.ReplaceAllString(s, "$1 ${2}Z"))
	case '[':
		list, _ := listOf(value)
		var cells []string
		for _, item := range list {
			cells = append(cells, cell(item))
		}
		return redactAndQuote(strings.Join(cells, ", "))
	}
	return redactAndQuote(sixDecimals.ReplaceAllString(string(value), "$1")) // a number or an object
}

// redactAndQuote redacts API keys in value, and quotes value if it has characters that could disturb a
// terminal.
func redactAndQuote(value string) string {
	value = redactKeys(value)
	if value == "" {
		return noValue
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return strconv.Quote(value)
	}
	return value
}
