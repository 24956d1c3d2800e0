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

// show prints a value: as JSON, or for people as tables. A list of objects is a table, an object is a line
// for each field and a table for each list in it. A client may have put an API key into a wrong place: keys
// are hidden, except for one that was just made.
func (c *call) show(value any, empty string) error {
	indent := ""
	if c.json {
		indent = "  "
	}
	text, err := c.encode(value, indent)
	if err == nil && !c.json {
		p := printer{hide: strings.Fields(c.hide)}
		p.add(json.RawMessage(text), empty)
		text = p.String()
	}
	if err != nil {
		return err
	}
	return c.say("%s", text)
}

// say prints a text for people.
func (c *call) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.cmd.OutOrStdout(), format, args...)
	return err
}

// encode is a value as JSON, with an end of the line.
func (c *call) encode(value any, indent string) (string, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	if c.printsKey {
		return text.String(), err
	}
	return hideKeys(text.String()), err
}

// field is a field of a JSON object.
type field struct {
	name  string
	value json.RawMessage
}

// fieldsOf returns the fields of a JSON object in their order.
func fieldsOf(object json.RawMessage) (fields []field) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token() // the server or an encoder has written it
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

// listOf returns the elements of a JSON list, and whether it is one.
func listOf(value json.RawMessage) (list []json.RawMessage, isList bool) {
	isList = value[0] == '[' && json.Unmarshal(value, &list) == nil
	return list, isList
}

// printer writes rows as tables for people.
type printer struct {
	strings.Builder
	hide    []string // columns
	headers []string // of a table that goes on; nil for a table that is whole
}

// add adds a value; empty is said of an empty list.
func (p *printer) add(value json.RawMessage, empty string) {
	if list, isList := listOf(value); isList {
		if len(list) == 0 {
			p.WriteString(empty + "\n")
		}
		p.table(list)
		return
	}
	var facts [][]string
	fields := fieldsOf(value)
	for _, f := range fields {
		list, isList := listOf(f.value)
		if string(f.value) != "null" && (!isList || !isTable(list)) && !slices.Contains(p.hide, f.name) {
			facts = append(facts, []string{title(f.name), cell(f.value)})
		}
	}
	p.align(facts, 0)
	for _, f := range fields {
		if list, isList := listOf(f.value); isList && len(list) > 0 && isTable(list) {
			p.WriteString("\n" + title(f.name) + "\n")
			p.table(list)
		}
	}
}

// isTable reports whether a list has lines of its own: rows, sentences, or many names.
func isTable(list []json.RawMessage) bool {
	return len(list) == 0 || list[0][0] == '{' ||
		list[0][0] == '"' && (len(list) > 3 || bytes.Contains(list[0], []byte(" ")))
}

// table adds a table of objects, without the columns that no row has, or a list of sentences.
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
	var lines [][]string
	var headers []string
	for _, row := range rows {
		line := []string{}
		headers = headers[:0]
		for i, f := range row {
			isGiven := func(r []field) bool { return given(r[i].value) }
			if p.headers == nil && !slices.ContainsFunc(rows, isGiven) || slices.Contains(p.hide, f.name) {
				continue
			}
			headers = append(headers, strings.ToUpper(title(f.name)))
			line = append(line, cell(f.value))
		}
		if lines == nil && len(p.headers) == 0 {
			lines = append(lines, headers)
		}
		lines = append(lines, line)
	}
	width := 0
	if p.headers != nil {
		p.headers, width = headers, 10
	}
	p.align(lines, width)
}

// given reports whether a value is one that people want to see in a column.
func given(value json.RawMessage) bool { return string(value) != "null" && string(value) != "[]" }

// align adds lines of cells with aligned columns.
func (p *printer) align(lines [][]string, width int) {
	w := tabwriter.NewWriter(&p.Builder, width, 0, 2, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	_ = w.Flush() // to a Builder
}

// title is a name for people.
func title(name string) string { return strings.ReplaceAll(name, "_", " ") }

// none is the cell of a value that is not there.
const none = "-"

// times matches the times of the server in JSON.
var times = regexp.MustCompile(`^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(\+00:00|Z)$`)

// cell is the text of a value.
func cell(value json.RawMessage) string {
	switch value[0] {
	case 'n':
		return none
	case 't':
		return "yes"
	case 'f':
		return "no"
	case '"':
		var is string
		_ = json.Unmarshal(value, &is) // it is a text
		if is == "infinity" {          // of a time
			return "never"
		}
		return text(times.ReplaceAllString(is, "$1 ${2}Z"))
	case '[':
		list, _ := listOf(value)
		var all []string
		for _, item := range list {
			all = append(all, cell(item))
		}
		return text(strings.Join(all, ", "))
	}
	return text(string(value)) // a number or an object
}

// text is without API keys, and has escapes for what could change a terminal or a table.
func text(value string) string {
	value = hideKeys(value)
	if value == "" {
		return none
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return strconv.Quote(value)
	}
	return value
}
