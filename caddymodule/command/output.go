package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// table is what people see of a list.
type table struct {
	header []string
	rows   [][]string
	// empty is printed instead of a table without rows.
	empty string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table, with aligned columns.
func (t *table) write(to io.Writer) error {
	if len(t.rows) == 0 {
		_, err := io.WriteString(to, t.empty+"\n")
		return err
	}
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	lines := t.rows
	if len(t.header) > 0 {
		lines = append([][]string{t.header}, lines...)
	}
	for _, line := range lines {
		if _, err := io.WriteString(w, strings.TrimRight(strings.Join(line, "\t"), "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// show prints a value as JSON, or for people.
func (t *tool) show(cmd *cobra.Command, value any, forPeople func(to io.Writer) error) error {
	to := cmd.OutOrStdout()
	if !t.json {
		return forPeople(to)
	}
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// showTable prints a value as JSON, or as a table for people.
func (t *tool) showTable(cmd *cobra.Command, value any, people table) error {
	return t.show(cmd, value, people.write)
}

// section is a table below a title. It is left out if the table has no rows, unless always is
// set.
type section struct {
	title  string
	table  table
	always bool
}

func writeSections(to io.Writer, sections ...section) error {
	for _, s := range sections {
		if len(s.table.rows) == 0 && !s.always {
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
func (t *tool) done(cmd *cobra.Command, value any, text string) error {
	return t.show(cmd, value, func(to io.Writer) error {
		_, err := io.WriteString(to, text+"\n")
		return err
	})
}
