package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// row has the columns of a table, each as its header and its value: "USER", k.User, "NAME", k.Name.
type row []any

// table is what people see of a list: lines of cells. The first line may be the header.
type table struct {
	lines [][]string
	// empty is printed instead of a table without lines.
	empty string
}

// tableOf is the table of a list.
func tableOf[T any](list []T, columns func(*T) row, empty string) table {
	t := table{empty: empty}
	for i := range list {
		t.addRow(columns(&list[i]))
	}
	return t
}

// addRow adds a row, and the header before the first one.
func (t *table) addRow(r row) {
	var header, cells []string
	for i := 0; i < len(r); i += 2 {
		header = append(header, r[i].(string))
		cells = append(cells, cell(r[i+1]))
	}
	if len(t.lines) == 0 {
		t.lines = append(t.lines, header)
	}
	t.lines = append(t.lines, cells)
}

// add adds a line of a table without a header.
func (t *table) add(values ...any) {
	var cells []string
	for _, value := range values {
		cells = append(cells, cell(value))
	}
	t.lines = append(t.lines, cells)
}

// write writes the table, with aligned columns.
func (t *table) write(to io.Writer) error {
	if len(t.lines) == 0 {
		_, err := io.WriteString(to, t.empty+"\n")
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, line := range t.lines {
		if _, err := io.WriteString(w, strings.TrimRight(strings.Join(line, "\t"), "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// show prints a value as JSON, or for people.
func (c *call) show(value any, forPeople func(to io.Writer) error) error {
	to := c.cmd.OutOrStdout()
	if !c.json {
		return forPeople(to)
	}
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// showList prints a list as JSON, or as a table for people. err is that of reading the list.
func showList[T any](c *call, list []T, err error, columns func(*T) row, empty string) error {
	if err != nil {
		return err
	}
	people := tableOf(list, columns, empty)
	return c.show(list, people.write)
}

// section is a table below a title. It is left out if the table has no lines, unless always is
// set.
type section struct {
	title  string
	table  table
	always bool
}

func writeSections(to io.Writer, sections ...section) error {
	for _, s := range sections {
		if len(s.table.lines) == 0 && !s.always {
			continue
		}
		if _, err := fmt.Fprintf(to, "\n%s\n", s.title); err != nil {
			return err
		}
		if err := s.table.write(to); err != nil {
			return err
		}
	}
	return nil
}

// done prints what a command has done.
func (c *call) done(value any, text string) error {
	return c.show(value, func(to io.Writer) error {
		_, err := io.WriteString(to, text+"\n")
		return err
	})
}

// outcome is what a command that changes one thing prints as JSON.
type outcome struct {
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
}

// changed prints that one thing was changed, unless err says that it was not.
func (c *call) changed(err error, kind, name, what string) error {
	if err != nil {
		return err
	}
	return c.done(outcome{name, what}, fmt.Sprintf("The %s %s is %s.", kind, text(name), what))
}
