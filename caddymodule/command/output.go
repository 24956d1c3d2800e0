package command

import (
	"encoding/json"
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

// done prints what a command has done.
func (t *tool) done(cmd *cobra.Command, value any, text string) error {
	return t.show(cmd, value, func(to io.Writer) error {
		_, err := io.WriteString(to, text+"\n")
		return err
	})
}
