package command

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// row has the columns of a table, each as its header and its value: "USER", k.User, "NAME", k.Name.
type row []any

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

// add adds a line of a table without a header.
func (t *table) add(values ...any) {
	var cells []string
	for _, value := range values {
		cells = append(cells, cell(value))
	}
	*t = append(*t, cells)
}

// page is what people see of a result. Writing to a page does not fail.
type page struct{ strings.Builder }

// print adds a formatted text.
func (p *page) print(format string, args ...any) { fmt.Fprintf(p, format, args...) }

// table adds a table, with aligned columns.
func (p *page) table(t table) {
	w := tabwriter.NewWriter(p, 0, 0, 2, ' ', 0)
	for _, line := range t {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(line, "\t"), "\t"))
	}
	_ = w.Flush() // its error is that of the page
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

// show prints a value as JSON, or as a page for people, unless err says that there is no value.
func show[T any](c *call, value T, err error, forPeople func(p *page, value T)) error {
	if err != nil {
		return err
	}
	to := c.cmd.OutOrStdout()
	if c.json {
		encoder := json.NewEncoder(to)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	var p page
	forPeople(&p, value)
	_, err = io.WriteString(to, p.String())
	return err
}

// showList is show for a list, which people see as a table, or as a text if the list is empty.
func showList[T any](c *call, list []T, err error, columns func(*T) row, empty string) error {
	return show(c, list, err, func(p *page, list []T) { addList(p, list, columns, empty) })
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
	if pointer := reflect.ValueOf(value); pointer.Kind() == reflect.Pointer {
		if pointer.IsNil() {
			return none
		}
		value = pointer.Elem().Interface()
	}
	switch value := value.(type) {
	case string:
		return text(value)
	case time.Time:
		return moment(value)
	case bool:
		if value {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprint(value)
}

// or is a value, or a text if there is none.
func or[T any](value *T, ifNil string) string {
	if value == nil {
		return ifNil
	}
	return cell(*value)
}

// text has escapes for what could change a terminal or a table.
func text(value string) string {
	if value == "" {
		return none
	}
	if strings.IndexFunc(value, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return strconv.Quote(value)
	}
	return value
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span is a duration in seconds, as in 1h, 1m30s, 7d or 0.5s.
func span(seconds float64) string {
	const day = 24 * 60 * 60
	if seconds >= day && math.Mod(seconds, day) == 0 {
		return strconv.FormatInt(int64(seconds)/day, 10) + "d"
	}
	d := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}
