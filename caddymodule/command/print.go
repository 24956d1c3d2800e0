package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	text, err := c.encode(value, "  ")
	if err != nil {
		return err
	}
	if !c.json {
		read, err := decode([]byte(text))
		if err != nil {
			return err
		}
		p := printer{hide: strings.Fields(c.hide)}
		p.add(read, empty)
		text = p.String()
	}
	_, err = io.WriteString(c.cmd.OutOrStdout(), text)
	return err
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

// object is a JSON object with its fields in their order.
type object []field

type field struct {
	name  string
	value any
}

// MarshalJSON keeps the order.
func (o object) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	for i, f := range o {
		name, _ := json.Marshal(f.name)
		text.WriteString(map[bool]string{true: "{", false: ","}[i == 0])
		text.Write(name)
		text.WriteByte(':')
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(f.value); err != nil {
			return nil, err
		}
	}
	if len(o) == 0 {
		return []byte("{}"), nil
	}
	return append(text.Bytes(), '}'), nil
}

// decode reads JSON: objects as object, lists as []any, numbers as json.Number.
func decode(text []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decodeNext(decoder)
}

func decodeNext(d *json.Decoder) (any, error) {
	token, err := d.Token()
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() && err == nil {
			var item any
			item, err = decodeNext(d)
			list = append(list, item)
		}
		_, end := d.Token()
		return list, first(err, end)
	case json.Delim('{'):
		o := object{}
		for d.More() && err == nil {
			var name json.Token
			if name, err = d.Token(); err == nil {
				f := field{name: name.(string)}
				f.value, err = decodeNext(d)
				o = append(o, f)
			}
		}
		_, end := d.Token()
		return o, first(err, end)
	}
	return token, err
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// printer writes rows as tables for people.
type printer struct {
	strings.Builder
	hide    []string // columns
	headers []string // of a table that goes on; nil for a table that is whole
}

// add adds a value; empty is said of an empty list.
func (p *printer) add(value any, empty string) {
	switch value := value.(type) {
	case []any:
		if len(value) == 0 {
			p.WriteString(empty + "\n")
			return
		}
		p.table(value)
	case object:
		var facts [][]string
		for _, f := range value {
			list, isList := f.value.([]any)
			if f.value != nil && (!isList || !isTable(list)) && !slices.Contains(p.hide, f.name) {
				facts = append(facts, []string{title(f.name), cell(f.value)})
			}
		}
		p.align(facts, 0)
		for _, f := range value {
			if list, isList := f.value.([]any); isList && len(list) > 0 && isTable(list) {
				p.WriteString("\n" + title(f.name) + "\n")
				p.table(list)
			}
		}
	}
}

// isTable reports whether a list has lines of its own: rows, sentences, or many names.
func isTable(list []any) bool {
	if len(list) == 0 {
		return true
	}
	note, isText := list[0].(string)
	_, isRow := list[0].(object)
	return isRow || isText && (len(list) > 3 || strings.Contains(note, " "))
}

// table adds a table of objects, without the columns that no row has, or a list of sentences.
func (p *printer) table(rows []any) {
	if len(rows) == 0 {
		return
	}
	var lines [][]string
	var headers []string
	for _, row := range rows {
		o, isRow := row.(object)
		if !isRow {
			p.WriteString(cell(row) + "\n")
			continue
		}
		line := []string{}
		headers = headers[:0]
		for i, f := range o {
			if p.headers == nil &&
				slices.IndexFunc(rows, func(r any) bool { return given(r.(object)[i].value) }) < 0 ||
				slices.Contains(p.hide, f.name) {
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
func given(value any) bool {
	list, isList := value.([]any)
	return value != nil && (!isList || len(list) > 0)
}

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
func cell(value any) string {
	switch value := value.(type) {
	case nil:
		return none
	case string:
		if value == "infinity" { // of a time
			return "never"
		}
		return text(times.ReplaceAllString(value, "$1 ${2}Z"))
	case bool:
		return map[bool]string{true: "yes", false: "no"}[value]
	case []any:
		var all []string
		for _, item := range value {
			all = append(all, cell(item))
		}
		return text(strings.Join(all, ", "))
	case object:
		raw, _ := json.Marshal(value)
		return text(string(raw))
	}
	return fmt.Sprint(value)
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
