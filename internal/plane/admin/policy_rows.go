package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// All rows of the policy that commands and files change are read and written here, as package policyfile has them.

// reads are the SQL of a column %[1]s as a value, by its kind.
var reads = map[columns.Kind]string{
	columns.Text:     "%[1]s",
	columns.Whole:    "%[1]s::text",
	columns.Amount:   "coalesce(%[1]s::text, '" + policyfile.Unlimited + "')",
	columns.Flag:     "%[1]s::text",
	columns.List:     "%[1]s",
	columns.Networks: "%[1]s::text[]",
	columns.Duration: "(extract(epoch FROM %[1]s) * 1000000)::bigint || 'us'",
	columns.Moment:   momentSQL(endSQL("%[1]s")),
	columns.Range: "coalesce(" + momentSQL("lower("+boundedSQL+")") + ", '') || '..' || coalesce(" +
		momentSQL("upper("+boundedSQL+")") + ", '')",
	columns.Day:       "%[1]s::text",
	columns.Digest:    "encode(%[1]s, 'hex')",
	columns.KeyDigest: "(SELECT encode(k.digest, 'hex') FROM rate_limit_api_keys k WHERE k.id = %[1]s)",
}

// boundedSQL is a range whose begin belongs to it, and whose end does not.
var boundedSQL = "tstzrange(" + beginSQL("(lower(%[1]s) + CASE WHEN lower_inc(%[1]s) THEN interval '0' ELSE '1 us' END)") + ", " +
	endSQL("(upper(%[1]s) + CASE WHEN upper_inc(%[1]s) THEN interval '1 us' ELSE '0' END)") + ")"

// momentSQL is a time as text.
func momentSQL(expression string) string {
	return "to_char(" + expression + ` AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`
}

// readRows reads rows t of a table, of which conditions hold.
func (w *work) readRows(to *policyfile.Content, table int, conditions string, args ...any) {
	t := &policyfile.Tables[table]
	to.Has[table] = true
	var values []string
	for i := range t.Columns {
		values = append(values, fmt.Sprintf(reads[t.Columns[i].Kind], "t."+t.Columns[i].Name))
	}
	sql := "SELECT json_build_array(" + strings.Join(values, ", ") + ")::text FROM " + t.Name + " t" + conditions
	for _, text := range some[string](w, sql, args...) {
		var row []any
		err := json.Unmarshal([]byte(text), &row)
		if err == nil {
			err = to.AddRow(table, row)
		}
		w.fail(err)
	}
}

// written is a value of a column as the server reads it.
func written(c *columns.Column, value any) any {
	text, isText := value.(string)
	switch {
	case !isText || text == policyfile.Unlimited && c.Kind == columns.Amount:
		if list, isList := value.([]string); isList {
			return list
		}
		return nil
	case c.Kind == columns.Duration: // without days, because their lengths vary
		d, _ := ratelimit.ParseWindow(text)
		return intervalOf(d)
	case c.Kind == columns.Moment && text == columns.Never:
		return "infinity"
	case c.Kind == columns.Range:
		return "[" + strings.Replace(text, "..", ",", 1) + ")"
	case c.Kind == columns.Digest || c.Kind == columns.KeyDigest:
		return `\x` + text
	}
	return text
}

// writtenSQL is a column of the row r of fromRows.
func writtenSQL(c *columns.Column) string {
	if c.Kind == columns.KeyDigest { // no key has the id 0, so a constraint refuses a digest that no key has
		return "CASE WHEN r." + c.Name + " IS NOT NULL THEN coalesce(" +
			"(SELECT k.id FROM rate_limit_api_keys k WHERE k.digest = r." + c.Name + "), 0) END"
	}
	return "r." + c.Name
}

// fromRows are the rows of the parameter: an array of objects.
func fromRows(t *policyfile.Table) string {
	var all []string
	for i := range t.Columns {
		kind := t.Columns[i].Kind
		if kind == columns.KeyDigest {
			kind = columns.Digest
		}
		all = append(all, t.Columns[i].Name+" "+kind.SQL())
	}
	return " jsonb_to_recordset($1::jsonb) AS r(" + strings.Join(all, ", ") + ")"
}

// insertRowsSQL makes rows. Late columns are set by updateRowsSQL.
func insertRowsSQL(t *policyfile.Table) string {
	var names, values []string
	for i := range t.Columns {
		if c := &t.Columns[i]; !c.Late {
			names, values = append(names, c.Name), append(values, writtenSQL(c))
		}
	}
	return "INSERT INTO " + t.Name + " (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") +
		" FROM" + fromRows(t)
}

func updateRowsSQL(t *policyfile.Table) string {
	var sets []string
	for i := range t.Columns {
		if c := &t.Columns[i]; !c.Key {
			sets = append(sets, c.Name+" = "+writtenSQL(c))
		}
	}
	return "UPDATE " + t.Name + " t SET " + strings.Join(sets, ", ") + " FROM" + fromRows(t) + isRowSQL(t)
}

// bareRowsSQL takes the amounts of overrides away.
func bareRowsSQL(t *policyfile.Table) string {
	return "UPDATE " + t.Name + " t SET events = NULL, burst = NULL FROM" + fromRows(t) + isRowSQL(t)
}

func deleteRowsSQL(t *policyfile.Table) string {
	return "DELETE FROM " + t.Name + " t USING" + fromRows(t) + isRowSQL(t)
}

// isRowSQL is the condition for the row of the table that a row of the parameter names.
func isRowSQL(t *policyfile.Table) string {
	var all []string
	for i := range t.Columns {
		switch c := &t.Columns[i]; {
		case c.Key && c.Kind == columns.Range:
			all = append(all, fmt.Sprintf(boundedSQL, "t."+c.Name)+" = "+writtenSQL(c))
		case c.Key && c.Needed:
			all = append(all, "t."+c.Name+" = "+writtenSQL(c))
		case c.Key:
			all = append(all, "t."+c.Name+" IS NOT DISTINCT FROM "+writtenSQL(c))
		}
	}
	return " WHERE " + strings.Join(all, " AND ")
}

// blame makes the error about a row that the server has refused.
type blame func(t *policyfile.Table, r *policyfile.Row, err error) error

// bare is for commands that change one row, which people know.
func bare(_ *policyfile.Table, _ *policyfile.Row, err error) error { return err }

// changeRows makes changes. An override and its limit must suit each other after each statement, so
// an override that changes with limits has no amount in between.
func (w *work) changeRows(changes []policyfile.Difference, blame blame) {
	w.execute("SET CONSTRAINTS ALL DEFERRED")
	do := func(table int, sql func(t *policyfile.Table) string, outcomes ...string) {
		var all []*policyfile.Row
		for i := range changes {
			if c := &changes[i]; c.Table == table && slices.Contains(outcomes, c.Outcome) {
				all = append(all, c.Row)
			}
		}
		t := &policyfile.Tables[table]
		w.onRows(t, sql(t), all, blame)
	}
	do(columns.Overrides, deleteRowsSQL, policyfile.Deleted)
	if slices.ContainsFunc(changes, func(c policyfile.Difference) bool { return c.Table == columns.Limits }) {
		do(columns.Overrides, bareRowsSQL, policyfile.Changed)
	}
	for table := range policyfile.Tables {
		do(table, insertRowsSQL, policyfile.Created)
		changed := []string{policyfile.Changed}
		if slices.ContainsFunc(policyfile.Tables[table].Columns, func(c columns.Column) bool { return c.Late }) {
			changed = append(changed, policyfile.Created)
		}
		do(table, updateRowsSQL, changed...)
	}
	for table := columns.Overrides - 1; table >= 0; table-- {
		do(table, deleteRowsSQL, policyfile.Deleted)
	}
}

// mostRows bounds the rows of a statement. More than 1,000 rows are one line in the log of changes.
const mostRows = 5000

// onRows runs a statement on rows. If the server refuses a row, it finds out which one, in halves, and
// the error is about the row. The transaction then cannot be committed.
func (w *work) onRows(t *policyfile.Table, sql string, rows []*policyfile.Row, blame blame) {
	for ; len(rows) > mostRows; rows = rows[mostRows:] {
		w.onRows(t, sql, rows[:mostRows], blame)
	}
	if len(rows) == 0 {
		return
	}
	objects := make([]map[string]any, len(rows))
	for i, r := range rows {
		objects[i] = map[string]any{}
		for j := range t.Columns {
			objects[i][t.Columns[j].Name] = written(&t.Columns[j], r.Values[j])
		}
	}
	text, err := json.Marshal(objects)
	w.fail(err)
	w.execute("SAVEPOINT rows")
	if w.err != nil {
		return
	}
	_, refused := w.Database.execute(w.ctx, sql, string(text))
	var locked *lockError
	switch {
	case refused == nil:
		w.execute("RELEASE SAVEPOINT rows")
	case errors.As(refused, &locked) || errors.Is(refused, errDeadlock) || w.conn.IsClosed():
		w.fail(refused)
	case len(rows) == 1:
		w.fail(blame(t, rows[0], aboutField(refused, t, rows[0])))
	default:
		w.execute("ROLLBACK TO SAVEPOINT rows")
		half := len(rows) / 2
		w.onRows(t, sql, rows[:half], blame)
		w.onRows(t, sql, rows[half:], blame)
		w.fail(refused)
	}
}

// aboutField is an error that names the field of a row and its value, if the error is that of a
// constraint on it.
func aboutField(err error, t *policyfile.Table, r *policyfile.Row) error {
	for i := range t.Columns {
		c := &t.Columns[i]
		if list, isList := r.Values[i].([]string); isList {
			err = withValue(err, c.Name, c.InFile(), strings.Join(list, ", "))
		} else if value, isText := r.Values[i].(string); isText {
			err = withValue(err, c.Name, c.InFile(), value)
		}
	}
	return err
}

func sortedKeys[V any](of map[string]V) []string {
	var all []string
	for key := range of {
		all = append(all, key)
	}
	slices.Sort(all)
	return all
}
