package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// row has the columns of a table, each as its header and its value: "USER", k.User, "NAME", k.Name.
type row []any

// fields returns a function that makes a row of an admin.Row, or of a struct. The text has headers and names, as in
// "USER user, EXPIRES expires_at=never". A name is a column of the admin.Row, or the JSON name of a field of the struct.
// What follows = stands for NULL, and what follows : is the name of a shape. Columns behind a bar, until the next bar, are
// left out of a row in which the first of them is NULL.
func fields[T any](text string) func(value *T) row {
	index := map[string]int{}
	if of := reflect.TypeFor[T](); of != reflect.TypeFor[admin.Row]() {
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			index[name] = i
		}
	}
	get := func(value *T, name string) any {
		if r, isAnswer := any(value).(*admin.Row); isAnswer {
			return r.Get(name)
		}
		i, found := index[name]
		if !found {
			return "no field " + name // a mistake, which the transcripts find
		}
		return given(reflect.ValueOf(value).Elem().Field(i).Interface())
	}
	return func(value *T) row {
		var all row
		for i, group := range strings.Split(text, " | ") {
			var some row
			for _, field := range strings.Split(group, ", ") {
				column, ifNull, _ := strings.Cut(field, "=")
				at := strings.LastIndexByte(column, ' ')
				name, shape, _ := strings.Cut(column[at+1:], ":")
				one := get(value, name)
				if one != nil && shape != "" {
					one = shapes[shape](one)
				}
				some = append(some, field[:at], or(one, cmp.Or(ifNull, none)))
			}
			if i == 0 || some[1] != none {
				all = append(all, some...)
			}
		}
		return all
	}
}

// shapes are how values are shown that are no texts, or not as they are.
var shapes = map[string]func(value any) string{
	"span":    func(value any) string { return span(value.(float64)) },
	"percent": func(value any) string { return fmt.Sprintf("%.1f %%", value) },
	"kB":      func(value any) string { return strconv.FormatInt(value.(int64)>>10, 10) + " kB" },
	"whole":   func(value any) string { return cell(int64(value.(float64))) },
	"table":   func(value any) string { return map[any]string{true: "durable", false: "ephemeral"}[value] },
	"the":     func(value any) string { return "the " + cell(value) },
}

// line is a row of a list: the value that programs see, and the row for people.
type line struct {
	value any
	row   row
}

// lister asks the question of a list.
type lister func(c *call) ([]line, error)

// lines are the rows of a list.
func lines[T any](list []T, err error, columns func(*T) row) ([]line, error) {
	var all []line
	for i := range list {
		all = append(all, line{value: &list[i], row: columns(&list[i])})
	}
	return all, err
}

// asks returns a lister of the answer to a question, with columns as in fields. The parameters of the question are flags.
func asks(question, columns string, flags ...string) lister {
	return func(c *call) ([]line, error) {
		var parameters []any
		for _, name := range flags {
			if name == "number" {
				parameters = append(parameters, int64(c.number("number")))
			} else {
				parameters = append(parameters, c.text(name))
			}
		}
		rows, err := c.db.Ask(c.ctx, question, parameters...)
		return lines(rows, err, fields[admin.Row](columns))
	}
}

// says is what people see of an empty list.
func says(text string) func(c *call) string { return func(*call) string { return text } }

// print prints a list.
func (c *call) print(e *entry) error {
	all, err := e.list(c)
	values := make([]any, len(all))
	for i := range all {
		values[i] = all[i].value
	}
	return show(c, values, err, func(p *page, _ []any) {
		addList(p, all, func(l *line) row { return l.row }, e.empty(c))
		if e.below != nil {
			e.below(c, p, all)
		}
	})
}

// table has lines of cells. The first line may be the header.
type table [][]string

// addRow adds a row, and the header before the first one.
func (t *table) addRow(r row) {
	var header, cells []string
	for i := 0; i < len(r); i += 2 {
		header = append(header, r[i].(string))
		cells = append(cells, cell(r[i+1]))
	}
	if len(*t) == 0 {
		*t = append(*t, header)
	}
	*t = append(*t, cells)
}

// page is what people see of a result. Writing to a page does not fail.
type page struct{ strings.Builder }

// print adds a formatted text.
func (p *page) print(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// table adds a table, with aligned columns.
func (p *page) table(t table) {
	var w widths
	p.WriteString(w.align(t))
}

// facts adds the columns of a row as lines.
func (p *page) facts(r row) {
	var t table
	for i := 0; i < len(r); i += 2 {
		t = append(t, []string{r[i].(string), cell(r[i+1])})
	}
	p.table(t)
}

// widths are those of the columns of a table. While a table is printed row by row, they only grow.
type widths []int

// align is the text of lines.
func (w *widths) align(t table) string {
	for _, cells := range t {
		for i, text := range cells {
			if i == len(*w) {
				*w = append(*w, 0)
			}
			if i < len(cells)-1 { // what is after the last cell does not matter
				(*w)[i] = max((*w)[i], utf8.RuneCountInString(text))
			}
		}
	}
	var all strings.Builder
	for _, cells := range t {
		line := ""
		for i, text := range cells {
			line += text + strings.Repeat(" ", max(0, (*w)[i]-utf8.RuneCountInString(text))+2)
		}
		all.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return all.String()
}

// next is the text of a row of a table that is printed row by row, with the header before the first one.
func (w *widths) next(r row) string {
	var t table
	t.addRow(r)
	return w.align(t[min(len(*w), 1):])
}

// addList adds the table of a list, or a text if the list is empty.
func addList[T any](p *page, list []T, columns func(*T) row, empty string) {
	if len(list) == 0 {
		p.print("%s\n", empty)
		return
	}
	var t table
	for i := range list {
		t.addRow(columns(&list[i]))
	}
	p.table(t)
}

// addSection adds the table of a list below a title, unless the list is empty.
func addSection[T any](p *page, title string, list []T, columns func(*T) row) {
	if len(list) > 0 {
		p.print("\n%s\n", title)
		addList(p, list, columns, "")
	}
}

// show prints a value as JSON, or as a page for people, unless err says that there is no value. A client may have put an API
// key into a wrong place: keys are hidden, except for one that was just made.
func show[T any](c *call, value T, err error, forPeople func(p *page, value T)) error {
	if err != nil {
		return err
	}
	var p page
	text := ""
	if c.json {
		text, err = c.encode(value, "  ")
	} else {
		forPeople(&p, value)
		text = p.String()
	}
	if err == nil {
		_, err = io.WriteString(c.cmd.OutOrStdout(), text)
	}
	return err
}

// encode is a value as JSON, with an end of the line.
func (c *call) encode(value any, indent string) (string, error) {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	if c.printsKey {
		return text.String(), err
	}
	return hideKeys(text.String()), err
}

// outcome is what a command that changes one thing prints as JSON.
type outcome struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
}

// changed prints that one thing was changed, unless err says that it was not.
func (c *call) changed(err error, kind, name, what string) error {
	return show(c, outcome{name, what}, err, func(p *page, o outcome) { p.print("The %s %s is %s.\n", kind, text(name), what) })
}

// none is the cell of a value that is not there.
const none = "-"

// cell is the text of a value. A pointer that is nil is a value that is not there.
func cell(value any) string {
	switch value := given(value).(type) {
	case nil:
		return none
	case string:
		return text(value)
	case []any:
		return text(strings.Join(texts(value), ", "))
	case time.Time:
		return moment(value)
	case json.RawMessage:
		return text(string(value))
	case bool:
		return map[bool]string{true: "yes", false: "no"}[value]
	default:
		return fmt.Sprint(value)
	}
}

// given is a value, or that to which it points; nil if there is none.
func given(value any) any {
	if pointer := reflect.ValueOf(value); pointer.Kind() == reflect.Pointer {
		if pointer.IsNil() {
			return nil
		}
		return pointer.Elem().Interface()
	}
	return value
}

// texts are those of a list in an answer.
func texts(list any) []string {
	var all []string
	items, _ := list.([]any)
	for _, item := range items {
		all = append(all, fmt.Sprint(item))
	}
	return all
}

// or is a value, or a text if there is none.
func or(value any, ifNil string) string {
	if given(value) == nil {
		return ifNil
	}
	return cell(value)
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

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span is a duration in seconds for people.
func span(seconds float64) string { return admin.Span(time.Duration(seconds * float64(time.Second))) }
